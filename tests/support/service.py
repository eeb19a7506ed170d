"""The whole core without sockets, in virtual time; its executors are KV oracles, and a test plays the frontends.

No message is encoded or lost, an executor answers as soon as the test says so, and nothing is written to a disk: what
the event loop, sockets and a journal add is in `core.py` and tests/sim.
"""

import re
from array import array
from collections import deque
from dataclasses import replace
from math import ceil
from typing import Any

from common import messages as m
from scheduler_svc.core.actions import Action, EndFrontend, SendToExecutor, SendToFrontend, WriteLog
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.requests.group_commit import GATHER_S, BatchSaved, JournalBatch, JournalState
from scheduler_svc.core.requests.journal_replay import read_batches
from tests.support.chores import done, tick
from tests.support.hello import LIMITS, hello
from tests.support.oracle import OracleExecutor, expected_output
from tests.support.submits import PROMPT, submit

Key = tuple[bytes, str, int]  # frontend, request, index


class Service:
    """A core, its executors, and all that was said to executors and frontends.

    Args:
        step_s: how long an executor takes for a step.
        config: of the core.

    Attributes:
        to_executors: all but plans.
        ended_frontends: peers and processes of those that were to be ended.
        said: to each frontend, but for Outputs.
        tokens, endings: what those said, since the last Attached.
        logprobs: tokens and log-probabilities that came with the tokens, one after the other.
        prompt_logprobs: likewise, of the prompt; all of a sequence come before its first token.
        pooled: results, each with the model that is named.
        refusals: by request, what the error of its last delta that had one says, and when to ask again.
    """

    def __init__(self, journal: JournalState = JournalState.OFF, step_s: float = 0.0, **config: Any) -> None:
        self.now, self.step_s = 0.0, step_s
        self.core = Core(CoreConfig(journal=journal, **config), self.now)
        self.executors: dict[str, OracleExecutor] = {}
        self.to_executors: list[tuple[bytes, m.SchedulerToExecutor]] = []
        self.said: dict[bytes, list[m.CoreToFrontend]] = {}
        self.ended_frontends: list[tuple[bytes, int]] = []
        self.logs: list[WriteLog] = []
        self.tokens: dict[Key, list[int]] = {}
        self.logprobs: dict[Key, list[tuple[int, float]]] = {}
        self.prompt_logprobs: dict[Key, list[tuple[int, float]]] = {}
        self.endings: dict[Key, str] = {}
        self.pooled: dict[Key, tuple[bytes, str]] = {}
        self.refusals: dict[str, tuple[str, int]] = {}
        self._plans: deque[tuple[bytes, m.Plan]] = deque()

    def do(self, actions: list[Action]) -> None:
        """Carry out what the core wants done."""
        for action in actions:
            match action:
                case SendToExecutor(peer, m.Plan() as plan):
                    self._plans.append((peer, plan))
                case SendToExecutor(peer, message):
                    self.to_executors.append((peer, message))
                case SendToFrontend(peer, message):
                    self.told(peer, message)
                case EndFrontend(peer, pid):
                    self.ended_frontends.append((peer, pid))
                case WriteLog():
                    self.logs.append(action)
                    self.core.logged(action, self.now)

    def join(self, name: str, **changes: Any) -> None:
        """An executor says Hello; its name is its peer too."""
        said = hello(name, **changes)
        self.executors[name] = OracleExecutor(replace(LIMITS, tasks=said.tasks))
        self.do(self.core.from_executor(name.encode(), said, self.now))

    def lose(self, name: str) -> None:
        """An executor dies, with all plans that it was sent."""
        del self.executors[name]
        self.do(self.core.executor_gone(name.encode(), self.now))

    def say(self, message: m.FrontendToCore, peer: bytes = b"web") -> Any:
        """A frontend says something. Returns the last thing it is told."""
        heard = len(self.said.get(peer, []))
        self.do(self.core.from_frontend(peer, message, self.now))
        self.flush()
        answers = self.said.get(peer, [])[heard:]
        return answers[-1] if answers else None

    def submit(self, request_id: str, **fields: Any) -> None:
        """A frontend submits a request, which its client can come back for; see `submit`."""
        self.say(submit(request_id, **({"is_resumable": True} | fields)))

    def turn(self, num_answers: int = 1000) -> None:
        """Executors answer at most so many plans, and frontends are told what those gave."""
        self.do(done(self.core.plans(self.now)))
        while self._plans and num_answers:
            peer, plan = self._plans.popleft()
            executor = self.executors.get(peer.decode())  # None: one that the test plays itself
            if executor is not None and self.core.fleet.member(plan.epoch) is not None:
                num_answers -= 1
                self.now += self.step_s
                self.do(self.core.from_executor(peer, executor.run(plan), self.now))
            self.do(done(self.core.plans(self.now)))
        self.flush()

    def flush(self) -> None:
        """Frontends take what waits for them."""
        for peer in self.core.frontends_with_outputs():
            while (message := self.core.next_output(peer)) is not None:
                self.told(peer, message)
                self.core.output_sent(peer)

    def write(self) -> bytes:
        """The journal writes what it has to. Returns the payload."""
        self.now += GATHER_S
        batch = self.core.next_batch(self.now)
        assert batch is not None, "there is nothing to write"
        self.do(self.core.batch_written(BatchSaved(batch.number), self.now))
        return batch.payload

    def write_all(self) -> list[bytes]:
        """The same, in as many batches as it takes."""
        payloads = [self.write()]
        while self.core.journal_due_in_s(self.now) is not None:
            payloads.append(self.write())
        return payloads

    def wait(self, seconds: float) -> None:
        """Time goes by, with a tick in every half second; executors are alive."""
        num_ticks = max(1, ceil(2 * seconds))
        for _ in range(num_ticks):
            self.now += seconds / num_ticks
            for member in self.core.fleet:
                self.do(self.core.from_executor(member.peer, m.ExecutorHeartbeat(epoch=member.epoch), self.now))
            self.do(tick(self.core, self.now))
        self.flush()

    def metric(self, series: str) -> float:
        """A value that Prometheus is told, 0 if there is none."""
        text = self.say(m.MetricsQuery(query_id=1)).text.decode()
        found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def events(self, event: str) -> list[WriteLog]:
        """WriteLog lines of this event."""
        return [line for line in self.logs if line.event == event]

    def told(self, peer: bytes, message: m.CoreToFrontend) -> None:
        """A frontend is told something."""
        if isinstance(message, m.Outputs):
            for delta in message.deltas:
                self._told_delta((peer, delta.request_id, delta.index), delta)
            return
        self.said.setdefault(peer, []).append(message)
        if isinstance(message, m.Attached):  # everything comes again
            for key in [key for key in self.tokens if key[:2] == (peer, message.request_id)]:
                del self.tokens[key], self.logprobs[key], self.prompt_logprobs[key]
                self.endings.pop(key, None)
                self.pooled.pop(key, None)

    def _told_delta(self, key: Key, delta: m.TokenDelta) -> None:
        if key in self.endings:
            assert delta.code == "taken_over", "told after the end"  # this may be said more than once
            return
        self.tokens.setdefault(key, []).extend(array("i", delta.token_ids))
        came = zip(array("i", delta.logprob_ids), array("f", delta.logprobs), strict=True)
        self.logprobs.setdefault(key, []).extend(came)
        came = zip(array("i", delta.prompt_logprob_ids), array("f", delta.prompt_logprobs), strict=True)
        self.prompt_logprobs.setdefault(key, []).extend(came)
        if delta.pooled:
            assert (delta.finish_reason, delta.token_ids, key in self.pooled) == ("stop", b"", False)
            self.pooled[key] = delta.pooled, delta.model
        if delta.error:
            self.refusals[delta.request_id] = delta.error, delta.retry_after_s
        if delta.finish_reason is not None:
            self.endings[key] = delta.code or delta.finish_reason


def restart(rows: list[bytes], **config: Any) -> tuple[Service, JournalBatch]:
    """A new life that has taken up what the journal holds, and the batch that its own journal begins with."""
    service = Service(JournalState.OK, first_batch=1000, **config)
    contents = read_batches(rows)
    service.do(service.core.restore(contents.requests, service.now, contents.life))
    batch = service.core.new_journal(service.now)
    service.do(service.core.batch_written(BatchSaved(batch.number), service.now))
    return service, batch


def undisturbed(max_tokens: int = 6) -> list[int]:
    """What a request of `submit` gives."""
    return expected_output([*PROMPT], m.SamplingParams(max_tokens=max_tokens), LIMITS.vocab_size)
