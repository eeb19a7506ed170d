"""What recorded steps cost, by kind of step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.rig.step_records import RecordedStep

PHASES = ("parse", "stage", "launch", "wait")


def phases(steps: Sequence[RecordedStep], *, launches_ahead: bool) -> dict[str, Any]:
    """What decode steps cost, and mixed steps (which have a part of a prompt).

    A step's own time begins at the end of the step before (for the first step, at its launch): the device spent it on
    the step, or waited for the step. The host's times overlap with it, and with each other: one thread parses plans, a
    second one stages and launches them, a third one waits for the tokens.

    Args:
        launches_ahead: whether a launch returns before its step is done. If so, `starved_share` is the share of the
            time in which every launched step was done, as the host saw it; else it is None.
    """
    befores = [None, *steps[:-1]]
    each = [_Cost.of(step, before) for step, before in zip(steps, befores, strict=True)]
    return {
        "decode": _phase([cost for cost in each if cost.step.is_decode], launches_ahead),
        "mixed": _phase([cost for cost in each if not cost.step.is_decode], launches_ahead),
    }


@dataclass(frozen=True)
class _Cost:
    step: RecordedStep
    own_s: float
    starved_s: float

    @classmethod
    def of(cls, step: RecordedStep, before: RecordedStep | None) -> "_Cost":
        begin_s = step.launched_s if before is None else before.done_s
        return cls(step, step.done_s - begin_s, max(0.0, step.launched_s + step.launch_s - begin_s))


def _phase(costs: Sequence[_Cost], launches_ahead: bool) -> dict[str, Any]:
    if not costs:
        return {"steps": 0}
    own_s = [cost.own_s for cost in costs]
    times = {"step": own_s} | {phase: [getattr(cost.step, f"{phase}_s") for cost in costs] for phase in PHASES}
    starved_share = sum(cost.starved_s for cost in costs) / sum(own_s)
    return {
        "steps": len(costs),
        "tokens": sum(int(cost.step.query_lens.sum()) for cost in costs),
        "s": round(sum(own_s), 4),
        "starved_share": round(starved_share, 4) if launches_ahead else None,
        **{f"us_{name}_p{p}": _microseconds(times[name], p) for name in times for p in (50, 99)},
    }


def _microseconds(seconds: Sequence[float], percent: int) -> float:
    return round(1e6 * float(np.percentile(seconds, percent)), 1)
