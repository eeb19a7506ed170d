"""Responses in the background: whatever is killed, their streams go on event for event, and what is stored is equal."""

import contextlib
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest
from openai.types.responses import Response

from scheduler_svc.client.processes.local_fleet import SCHEDULER, executor_name
from tests.e2e.conftest import client_of, made_whole
from tests.e2e.service import frozen
from tests.support.eventually import eventually

MODEL = "baton-demo"
NUM_TOKENS = 120  # a second of work, in which four processes are killed
QUESTION = {"model": MODEL, "input": "JULIET:\nO Romeo, Romeo! ", "max_output_tokens": NUM_TOKENS, "temperature": 0}
LONG = {"extra_body": {"ignore_eos": True}}
SHORT = QUESTION | {"max_output_tokens": 40}
GONE = (openai.APIConnectionError, openai.InternalServerError, httpx.TransportError)


class Reader:
    """Reads a response's events in a thread, and asks for the rest whenever the connection breaks."""

    def __init__(self, client, response_id: str) -> None:
        self.events: list = []
        self.error: Exception | None = None
        self._client = client
        self._id = response_id
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def result(self) -> list:
        """All events."""
        self._thread.join(120)
        assert self.error is None, self.error
        assert not self._thread.is_alive(), f"{len(self.events)} events have come"
        return self.events

    def _read(self) -> None:
        try:
            while not (self.events and self.events[-1].type in ("response.completed", "response.incomplete")):
                with contextlib.suppress(*GONE):
                    after = {"starting_after": self.events[-1].sequence_number} if self.events else {}
                    for event in self._client.responses.retrieve(self._id, stream=True, **after):
                        self.events.append(event)
        except Exception as error:
            self.error = error


def children(pid: int) -> dict[str, int]:
    """The processes that a scheduler has started, by their modules."""
    pids = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    found = {}
    for child in pids:
        command = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        if "-m" in command:  # else it has ended
            found[command[command.index("-m") + 1]] = child
    return found


def replace(fleet, module: str, started: str) -> None:
    """Kill a process that the scheduler has started. Another one has started when this returns, and no token was
    computed meanwhile, so that there are some left to read."""

    def num_started() -> int:
        return fleet.log_tail(SCHEDULER, 10_000).count(f'event="{started}"')

    before = num_started()
    with frozen(fleet.pids[executor_name(0)]):
        os.kill(children(fleet.pids[SCHEDULER])[module], signal.SIGKILL)
        eventually(lambda: num_started() > before)


def told(events: list) -> list:
    """What two runs of one request have in common."""
    return [(event.sequence_number, event.type, getattr(event, "delta", None)) for event in events]


@dataclass(frozen=True)
class Disturbed:
    """What was asked of a service of which each process was killed meanwhile.

    Attributes:
        undisturbed: all events of the question, before.
        response_id: of the same one, that goes on in the background while processes are killed, one after the other.
        seen: its events, as each of two readers had them.
        first: a response that was complete before.
        unread_id: of one that began in the background shortly before the scheduler was killed, and that has no reader.
    """

    undisturbed: list
    response_id: str
    seen: list[list]
    first: Response
    unread_id: str


@pytest.fixture(scope="module")
def disturbed(one_fleet):
    fleet, client = made_whole(one_fleet), client_of(one_fleet)
    first = client.responses.create(**SHORT)
    undisturbed = list(client.responses.create(**QUESTION, **LONG, background=True, stream=True))
    response = client.responses.create(**QUESTION, **LONG, background=True)
    assert response.status == "queued"
    readers = [Reader(client, response.id) for _ in range(2)]

    def wait_for(num_events: int) -> None:
        eventually(lambda: min(len(reader.events) for reader in readers) >= num_events, 60)

    wait_for(10)
    replace(fleet, "scheduler_svc.frontend.background", "worker started")
    wait_for(25)
    replace(fleet, "scheduler_svc.frontend", "frontend started")
    wait_for(40)
    fleet.kill_executor(0)
    fleet.start_executor(0)
    wait_for(55)
    unread = client.responses.create(**SHORT, background=True)
    os.kill(fleet.pids[SCHEDULER], signal.SIGKILL)
    eventually(fleet.poll)
    fleet.start_child(SCHEDULER)
    seen = [reader.result() for reader in readers]
    return Disturbed(undisturbed, response.id, seen, first, unread.id)


@pytest.mark.timeout(240)
def test_a_stream_goes_on_whatever_is_killed(fleet, disturbed):
    assert [event.sequence_number for event in disturbed.undisturbed] == list(range(len(disturbed.undisturbed)))
    for events in disturbed.seen:
        assert told(events) == told(disturbed.undisturbed), "not an event more or less, in their order"
    client = client_of(fleet)
    stored = client.responses.retrieve(disturbed.response_id)
    assert stored == disturbed.seen[0][-1].response
    assert stored.output_text == disturbed.undisturbed[-1].response.output_text
    again = list(client.responses.retrieve(disturbed.response_id, stream=True, starting_after=50))
    assert again == disturbed.seen[0][51:]


@pytest.mark.timeout(240)
def test_what_was_stored_is_there_after_a_restart_and_is_gone_on_from(fleet, disturbed):
    client, first, unread_id = client_of(fleet), disturbed.first, disturbed.unread_id
    assert client.responses.retrieve(first.id) == first
    eventually(lambda: client.responses.retrieve(unread_id).status in ("completed", "incomplete"), 60)
    assert client.responses.retrieve(unread_id).output_text == first.output_text
    second = client.responses.create(model=MODEL, input="And then?", previous_response_id=first.id, max_output_tokens=5)
    assert second.usage.input_tokens_details.cached_tokens > 0, "the conversation so far is in the prefix cache"
    stranger = openai.OpenAI(base_url=f"{fleet.spec.url}/v1", api_key="another", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.responses.retrieve(first.id)
