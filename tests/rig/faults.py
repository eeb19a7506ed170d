"""The faults that the rig has to find, each by its number and name; `test_mutations.py` and `test_ranks.py` find them.

A fault is a function, because what it does may have to remember something from one call to the next.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from executor_svc.runner.graphs import StepGraphs
from tests.rig.planting import Plant, planted

RUNNER = "executor_svc.runner.runner.Runner"
READBACK = "executor_svc.runner.readback.Readback"
LOGITS = "executor_svc.model.model.Decoder.compute_logits"  # the last of what a graph of a decode step captures
DRAW = "executor_svc.model.vocab_parallel.VocabParallelDraw"

FAULTS: dict[str, Callable[[], Sequence[Plant]]] = {}


def plant(name: str) -> AbstractContextManager[None]:
    """Plant a fault by its name until the end of the `with`."""
    return planted(FAULTS[name]())


def _fault(make: Callable[[], Sequence[Plant]]) -> Callable[[], Sequence[Plant]]:
    """Enter a fault under the name of its function, in words."""
    FAULTS[make.__name__.replace("_", " ")] = make
    return make


def _is_left_out(*_: Any, **__: Any) -> None:
    """Do nothing in place of a call that gives nothing."""


# --- what is copied to the host ---


@_fault
def tokens_are_copied_before_they_are_drawn() -> Sequence[Plant]:
    """1: the stream that copies does not wait for the one that computes."""
    return [Plant(f"{READBACK}.start", _is_left_out, "wait_event")]


@_fault
def the_next_step_does_not_wait_for_copies() -> Sequence[Plant]:
    """2: it overwrites tokens that are still being copied."""
    return [Plant(f"{READBACK}.before_overwriting", _is_left_out, "wait_event")]


@_fault
def a_step_does_not_wait_before_sampling() -> Sequence[Plant]:
    """3: of the two places where a step may overwrite what is copied, the second."""
    return [Plant(f"{RUNNER}.launch", _is_left_out, "before_overwriting", at=1, of=2)]


@_fault
def a_step_does_not_wait_before_a_forward_pass() -> Sequence[Plant]:
    """4: of these two places, the first."""
    return [Plant(f"{RUNNER}.launch", _is_left_out, "before_overwriting", at=0, of=2)]


@_fault
def tokens_are_read_before_they_are_there() -> Sequence[Plant]:
    """5: the thread that collects them does not wait."""
    return [Plant("executor_svc.runner.readback.PendingCopies.wait", _is_left_out, "synchronize")]


@_fault
def a_step_waits_for_the_copy_of_the_tokens_alone() -> Sequence[Plant]:
    """6: and so overwrites log-probabilities that are still being copied."""
    first: list[torch.cuda.Event] = []

    def before_overwriting(wait_event: Callable[..., None], _: torch.cuda.Event) -> None:
        wait_event(first[-1])

    return [
        Plant(f"{READBACK}.start", _after_the_first(lambda: first.append(_recorded())), "zip"),
        Plant(f"{READBACK}.before_overwriting", before_overwriting, "wait_event"),
    ]


@_fault
def only_the_copy_of_the_tokens_waits() -> Sequence[Plant]:
    """7: log-probabilities are copied before it, and before they are computed."""
    waits: list[Callable[[], None]] = []

    def wait_later(wait_event: Callable[..., None], drawn: torch.cuda.Event) -> None:
        waits.append(lambda: wait_event(drawn))

    def tokens_last(pairs_of: Callable[..., Any], *lists: Any, **options: Any) -> Iterator[Any]:
        *others, tokens = reversed(list(pairs_of(*lists, **options)))
        yield from others
        waits.pop()()
        yield tokens

    return [
        Plant(f"{READBACK}.start", wait_later, "wait_event"),
        Plant(f"{READBACK}.start", tokens_last, "zip"),
    ]


@_fault
def the_tokens_alone_are_waited_for() -> Sequence[Plant]:
    """8: the thread that collects reads log-probabilities that may not be there."""
    first: list[torch.cuda.Event] = []

    def pending(make: Callable[..., Any], hosts: Any, _: torch.cuda.Event) -> Any:
        return make(hosts, first[-1])

    return [
        Plant(f"{READBACK}.start", _after_the_first(lambda: first.append(_recorded())), "zip"),
        Plant(f"{READBACK}.start", pending, "PendingCopies"),
    ]


@_fault
def a_second_thread_copies() -> Sequence[Plant]:
    """9: the thread that collects uses the stream of the one that launches."""

    def wait_and_copy(synchronize: Callable[[], None]) -> None:
        synchronize()
        torch.zeros(4, pin_memory=True).cuda(non_blocking=True)

    return [Plant("executor_svc.runner.readback.PendingCopies.wait", wait_and_copy, "synchronize")]


# --- what is copied to the device ---


@_fault
def a_pinned_buffer_is_used_again() -> Sequence[Plant]:
    """10: all steps' arrays come through the same one."""
    buffers: list[torch.Tensor] = []

    def empty(make: Callable[..., torch.Tensor], num_words: int, **options: Any) -> torch.Tensor:
        if not buffers:
            buffers.append(make(2**20, **options))
        return buffers[0][:num_words]

    return [Plant("executor_svc.runner.runner.Arena.upload", empty, "empty")]


@_fault
def lists_come_by_a_stream_of_their_own() -> Sequence[Plant]:
    """11: which waits for no step that reads what they overwrite."""
    return [Plant("executor_svc.staging.asked.Arena.upload", _on_another_stream, "copy_")]


@_fault
def masks_come_by_a_stream_of_their_own() -> Sequence[Plant]:
    """12: likewise."""
    return [Plant("executor_svc.staging.asked.copy_to_device", _on_another_stream, "copy_")]


@_fault
def starts_of_lanes_come_by_a_stream_of_their_own() -> Sequence[Plant]:
    """13: likewise."""
    return [Plant("executor_svc.runner.asked_steps.copy_to_device", _on_another_stream, "copy_")]


# --- what is compiled and taken beforehand ---


@_fault
def no_step_asks_before_serving() -> Sequence[Plant]:
    """14: the kernels of what samples ask for are not compiled."""
    return [Plant(f"{RUNNER}._take_spare_memory", lambda _: [], "asking_plans")]


@_fault
def no_pinned_memory_is_taken_before_serving() -> Sequence[Plant]:
    """15: steps ask the driver for it."""
    return [Plant(f"{RUNNER}._take_spare_memory", _is_left_out, "take_pinned_memory")]


@_fault
def nothing_is_warmed_up() -> Sequence[Plant]:
    """16: no kernel is compiled before serving."""
    return [Plant(f"{RUNNER}.warm_up", _is_left_out)]


# --- graphs ---


@_fault
def a_graph_uses_memory_that_others_get() -> Sequence[Plant]:
    """17: a step that is captured copies to what torch hands to others later."""
    held: list[tuple[torch.cuda.Stream, torch.Tensor]] = []

    def also_copy(compute: Callable[..., None], self: Any, hidden_states: torch.Tensor, rows: torch.Tensor) -> None:
        compute(self, hidden_states, rows)
        if not held:  # a capture will find room beside this without a cudaMalloc
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                held.append((stream, torch.empty(2**10, device="cuda")))
        with torch.cuda.stream(held[0][0]):  # not the captured one, so not of the graph's memory
            scratch = torch.empty_like(rows)
        scratch.copy_(rows)

    return [Plant(LOGITS, also_copy)]


@_fault
def graphs_outlive_their_memory() -> Sequence[Plant]:
    """18: who runs them keeps them when the executor is gone."""
    return [Plant("executor_svc.runner.graphs.StepGraphs.capture_decode", _keep_graphs)]


KEPT: list[StepGraphs] = []
"""Graphs of executors that were made with that fault."""


def _keep_graphs(capture: Callable[..., None], self: StepGraphs, *args: Any) -> None:
    KEPT[:] = [self]
    capture(self, *args)


@_fault
def a_capture_allocates() -> Sequence[Plant]:
    """19: memory that a stream gets which is not captured."""

    def allocate(hidden_states: torch.Tensor) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.empty(2**24, device="cuda")

    return [Plant(LOGITS, _in_captures(allocate))]


@_fault
def a_capture_waits() -> Sequence[Plant]:
    """20: for a value."""
    return [Plant(LOGITS, _in_captures(lambda hidden_states: hidden_states.sum().item()))]


# --- ranks ---


@_fault
def a_rank_swaps_collectives() -> Sequence[Plant]:
    """21: where rows are brought together and results added up, it adds up first."""
    results: list[torch.Tensor] = []

    def draw(original: Callable[..., None], self: Any, *args: Any) -> None:
        *_, out = args
        results[:] = [tensor for tensor in vars(out).values() if tensor.numel()]
        original(self, *args)

    def add_up_and_exchange(all_to_all: Callable[..., None], *args: Any) -> None:
        for tensor in results:
            all_to_all.__self__.all_reduce(tensor)  # type: ignore[attr-defined]
        all_to_all(*args)

    def unless_added_up(all_reduce: Callable[..., None], tensor: torch.Tensor) -> None:
        if results:
            results.pop()
        else:
            all_reduce(tensor)

    return [
        Plant(f"{DRAW}.draw", draw),
        Plant(f"{DRAW}._own_rows", add_up_and_exchange, "all_to_all"),
        Plant(f"{DRAW}._add_up", unless_added_up, "all_reduce"),
    ]


@_fault
def graphs_outlive_the_group() -> Sequence[Plant]:
    """22: they hold its operations."""
    return [Plant(f"{RUNNER}.close", _is_left_out)]


# --- what several of them do ---


def _recorded() -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _after_the_first(do: Callable[[], object]) -> Callable[..., Iterator[Any]]:
    """In place of `zip` in a loop that copies: do something when the first copy has been given."""

    def pairs(pairs_of: Callable[..., Any], *lists: Any, **options: Any) -> Iterator[Any]:
        for number, pair in enumerate(pairs_of(*lists, **options)):
            yield pair
            if number == 0:
                do()

    return pairs


def _on_another_stream(copy: Callable[..., Any], *args: Any, **options: Any) -> Any:
    with torch.cuda.stream(torch.cuda.Stream()):
        return copy(*args, **options)


def _in_captures(do: Callable[[torch.Tensor], object]) -> Callable[..., None]:
    def compute_logits(original: Callable[..., None], self: Any, hidden_states: torch.Tensor, *rest: Any) -> None:
        original(self, hidden_states, *rest)
        if torch.cuda.is_current_stream_capturing():
            do(hidden_states)

    return compute_logits
