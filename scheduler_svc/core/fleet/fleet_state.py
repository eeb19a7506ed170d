"""What frontends are told of the fleet. Pure."""

from collections.abc import Callable, Iterable
from typing import get_args

import msgspec

from common import messages as m
from scheduler_svc.core.fleet.fleet import Member
from scheduler_svc.core.fleet.membership import Standing


def no_fleet(max_waiting: int) -> m.FleetState:
    """The state before the first member.

    Args:
        max_waiting: sequences of each task that may wait.
    """
    return m.FleetState(num_ready=0, fingerprint="", max_model_len=0, max_waiting=max_waiting)


def fleet_state(
    members: Iterable[Member],
    before: m.FleetState,
    largest: Callable[[m.Task], int],
    may_come: Callable[[m.Task], bool],
) -> m.FleetState:
    """The fleet's state. It names each task that a member has taken, or may yet take.

    Args:
        members: in the order in which they joined.
        before: the state before.
        largest: positions that a sequence of a task may have.
        may_come: whether an executor of a task may come, or come back.
    """
    fingerprint, num_ready, longest, states = before.fingerprint, 0, {}, []
    everyone = list(members)
    for task in get_args(m.Task):
        able = [member for member in everyone if task in member.hello.tasks]
        longest[task] = largest(task)
        if not (able or may_come(task)):
            continue
        ready = sum(member.standing is Standing.READY for member in able)
        states.append(m.TaskState(task=task, num_ready=ready, max_model_len=longest[task]))
        if task == "generate":
            num_ready, fingerprint = ready, able[-1].hello.fingerprint if able else fingerprint
    facts = {"num_ready": num_ready, "fingerprint": fingerprint, "max_model_len": longest["generate"]}
    return msgspec.structs.replace(before, **facts, tasks=tuple(states))
