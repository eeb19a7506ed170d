"""The real scheduler and real runners in one process, without sockets: requests in, tokens and log-probabilities out,
and executors that vanish at chosen steps.
"""

from array import array
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from common import messages as m
from common.grammars import grammar_library
from common.plan import ExecutorLimits, parse_plan
from common.wire import Codec
from executor_svc.runner.runner import Runner
from scheduler_svc.core.fleet.membership import Membership
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.step_output import SequenceEnd


@dataclass
class Answer:
    """What came of a sequence."""

    tokens: list[int] = field(default_factory=list)
    logprob_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprob_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    pooled: bytes = b""
    end: SequenceEnd | None = None


Answers = dict[tuple[str, int], Answer]


def submit(request_id: str, prompt: Sequence[int], max_tokens: int, *, n: int = 1, **params: Any) -> m.Submit:
    """A request."""
    sampling = m.SamplingParams(max_tokens=max_tokens, **params)
    return m.Submit(request_id=request_id, prompt=array("i", prompt).tobytes(), params=sampling, n=n)


def serve(
    runners: Sequence[tuple[Runner[Any], ExecutorLimits]],
    submits: Sequence[m.Submit],
    *,
    window: int = 2,
    lost_at: Collection[int] = (),
    joins: Sequence[int] = (),
) -> Answers:
    """Run all requests to their ends on one executor at a time.

    Args:
        runners: take turns: when one vanishes the next one joins, in an epoch of its own.
        lost_at: numbers of steps, counted over all executors, before whose answers the executor vanishes.
        joins: how many steps pass before each of the first requests is added; the others are there from the start.
    """
    library = grammar_library()
    scheduler = Scheduler(SchedulerConfig(window=window, grammars=library))
    codec: Codec[m.Plan] = Codec(m.SchedulerToExecutor)
    answers: Answers = {}
    late = deque(sorted(zip(joins, submits, strict=False), key=lambda each: each[0]))
    epoch = num_steps = 0
    in_flight: deque[tuple[int, Any]] = deque()

    def add(request: m.Submit) -> None:
        scheduler.add(request)
        answers.update({(request.request_id, index): Answer() for index in range(request.n)})

    def join() -> None:
        nonlocal epoch
        epoch += 1
        limits = runners[epoch % len(runners)][1]
        scheduler.add_executor(Membership(epoch, "", "", limits, grammars=library))

    join()
    for request in submits[len(joins) :]:
        add(request)
    while late or len(scheduler.sequences):
        while late and late[0][0] <= num_steps:
            add(late.popleft()[1])
        runner, limits = runners[epoch % len(runners)]
        while (plan := scheduler.plan(epoch)) is not None:
            columns = parse_plan(codec.decode(codec.encode(plan)), limits)
            in_flight.append((plan.step, runner.launch(columns)))
        scheduler.check()
        num_steps += 1
        if num_steps in lost_at:
            in_flight.clear()
            scheduler.remove_executor(epoch)
            join()
        elif in_flight:
            step, pending = in_flight.popleft()
            output = scheduler.commit(pending.wait().message(epoch, step, compute_us=1))
            for came in output.prompt_logprobs:
                answer = answers[came.sequence.request_id, came.sequence.index]
                assert not answer.tokens, "log-probabilities of the prompt come before the first token"
                answer.prompt_logprob_ids += array("i", came.ids)
                answer.prompt_logprobs += array("f", came.values)
            for sequence, token in zip(output.sequences, output.tokens, strict=True):
                answers[sequence.request_id, sequence.index].tokens.append(token)
            for end in output.ends:
                answer = answers[end.sequence.request_id, end.sequence.index]
                answer.end = end
                answer.logprob_ids = end.sequence.logprob_ids.tolist()
                answer.logprobs = end.sequence.logprobs.tolist()
                answer.pooled = end.sequence.pooled
    return answers
