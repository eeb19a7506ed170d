"""bench_cpu.py's figures, made of the rounds and of the executor's recorded steps."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.cpu.take_turns import Turn, ratios
from benchmarks.rig.runs import TimedRun, rates
from benchmarks.rig.step_records import RecordedStep, between
from benchmarks.rig.timed_kernels import KINDS

SERVICES, IN_PROCESS, VLLM = "services", "in_process", "vllm"

Rounds = Sequence[Mapping[str, Turn]]


def seconds_by_kind(run: TimedRun, steps: Sequence[RecordedStep]) -> dict[str, float]:
    """Where a run's time went, in seconds."""
    seconds = {kind: sum(getattr(step, f"{kind}_s") for step in steps) for kind in KINDS}
    computing = sum(step.launch_s for step in steps)
    seconds["rest"] = computing - sum(seconds.values())
    seconds["waiting"] = run.end_s - run.start_s - computing
    return {kind: round(value, 4) for kind, value in seconds.items()}


def steps_of(run: TimedRun, steps: Sequence[RecordedStep]) -> list[RecordedStep]:
    """The steps of one run.

    Raises:
        RuntimeError: the steps drew more or fewer tokens than the run received.
    """
    its_steps = between(steps, run.start_s, run.end_s)
    drawn = sum(step.num_samples for step in its_steps)
    if drawn != run.num_tokens:
        raise RuntimeError(f"a run received {run.num_tokens} tokens, and {drawn} are recorded")
    return its_steps


def against_vllm(rounds: Rounds) -> dict[str, Any]:
    """vLLM's rates, and in each round the services' rate over vLLM's."""
    each = ratios(rounds, SERVICES, VLLM)
    return {
        **_rates(rounds, VLLM),
        "ratio": round(median(each), 3),
        "ratio_rounds": [round(ratio, 3) for ratio in each],
    }


def against_one_process(rounds: Rounds) -> dict[str, Any]:
    """The rates of one process, and in each round the share of its rate that the services lose."""
    each = [1 - ratio for ratio in ratios(rounds, SERVICES, IN_PROCESS)]
    return {
        **_rates(rounds, IN_PROCESS),
        "split_price": round(median(each), 4),
        "split_price_rounds": [round(price, 4) for price in each],
    }


def turn_figures(turn: Turn) -> dict[str, Any]:
    """A run, and the memory before and after it."""
    return {
        "tok_s": round(turn.run.tokens_per_s, 2),
        "read_gb_s": [round(rate / 1e9, 2) for rate in (turn.read_before, turn.read_after)],
        "straddles": turn.straddles,
    }


def _rates(rounds: Rounds, side: str) -> dict[str, Any]:
    return rates([turns[side].run for turns in rounds], digits=2)
