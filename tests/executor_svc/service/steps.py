"""Plans of one sequence for an executor's process, and what it answers."""

import subprocess

import numpy as np

from common import messages as m
from tests.executor_svc.harness import Pool, Row, make_plan
from tests.executor_svc.puppet import LIMITS
from tests.support.fake_scheduler import FakeScheduler

BLOCK_SIZE = 16
"""Of executors that are no puppets."""


def plan(token: int = 1, *, epoch: int = 1, step: int = 0, context_len: int = 5) -> m.Plan:
    """A step of a puppet, which does what the token says."""
    table = Pool(64, 4).grow([], context_len)
    return make_plan([Row(0, [token], context_len, table)], LIMITS.block_size, epoch=epoch, step=step)


def tokens_of(result: m.StepResult) -> list[int]:
    return np.frombuffer(result.token_ids, "<i4").tolist()


def greedy(scheduler: FakeScheduler, prompt: list[int], num_tokens: int) -> list[int]:
    """New tokens after a prompt, one step after the other."""
    table, query = Pool(32, BLOCK_SIZE).grow([], len(prompt) + num_tokens), prompt
    tokens: list[int] = []
    for step in range(num_tokens):
        row = Row(0, query, len(prompt) + len(tokens), table)
        scheduler.send(make_plan([row], BLOCK_SIZE, step=step))
        tokens += tokens_of(scheduler.expect(m.StepResult, beat=1))
        query = [-1]
    return tokens


def ranks_of(torchrun: "subprocess.Popen[bytes]") -> list[int]:
    """The processes of a group's ranks."""
    found = subprocess.run(["pgrep", "--parent", str(torchrun.pid)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]
