"""Anthropic's messages: their events as a client has them, and the same message as it comes whole."""

import json
from dataclasses import dataclass, field
from typing import Any

from common import messages as m
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.event_ids import Position
from scheduler_svc.frontend.answers.generation import AnswerSpec, Generation
from scheduler_svc.frontend.answers.messages_api.events import whole_message
from scheduler_svc.frontend.answers.openai_objects import to_json
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from tests.frontend.answers.broken_streams import NUM_PROMPT_TOKENS, ResumableRequest, Sequence
from tests.frontend.messages import is_object
from tests.support.demo_tokenizer import EOS, TOKENIZER


@dataclass
class Seen:
    """What a client has of all its connections."""

    last_event_id: str = ""
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return bool(self.events) and self.events[-1][0] == "message_stop"

    def take(self, event: bytes) -> None:
        """One event of the stream."""
        fields = dict(line.split(": ", 1) for line in event.decode().split("\n"))
        assert list(fields) == ["event", "data", "id"]
        assert not self.is_done
        assert int(fields["id"]) == len(self.events)
        self.last_event_id = fields["id"]
        data = json.loads(fields["data"])
        assert data["type"] == fields["event"]
        self.events.append((fields["event"], data))

    def message(self) -> dict[str, Any]:
        """What the events build up; calls have the JSON of their inputs."""
        message: dict[str, Any] = {}
        for name, data in self.events:
            match name:
                case "message_start":
                    message = data["message"]
                case "content_block_start":
                    assert data["index"] == len(message["content"])
                    message["content"].append(data["content_block"] | {"json": "", "is_open": True})
                case "content_block_delta":
                    block = message["content"][data["index"]]
                    assert block["is_open"]
                    for key, new in data["delta"].items():
                        if key != "type":
                            block[key.replace("partial_json", "json")] += new
                case "content_block_stop":
                    assert message["content"][data["index"]].pop("is_open")
                case "message_delta":
                    message |= data["delta"]
                    message["usage"] = data["usage"]
        return message


def service(context: AnswerContext, tokens: list[int], reason: m.FinishReason) -> ResumableRequest:
    return ResumableRequest(
        context, [Sequence([*tokens, *([EOS] if reason == "stop" else [])], reason, 0, [5], 0)], [[5]]
    )


async def whole(context: AnswerContext, tokens: list[int], reason: m.FinishReason) -> dict[str, Any]:
    """The message as it comes where no stream was asked for."""
    queue = DeltaQueue(lambda _: None, lambda _: None, is_streamed=True, is_resumable=False)
    queue.add("0", 0, 1)
    spec = AnswerSpec("id", context, NUM_PROMPT_TOKENS, Position.start(1))
    with Generation(queue, TOKENIZER, spec) as generation:
        for delta in service(context, tokens, reason).sequences[0].deltas("0", 0, [7]):
            queue.put(delta)
        return json.loads(to_json(await whole_message(generation)))


def object_in(text: str) -> dict[str, Any]:
    return json.loads(text) if is_object(text) else {"INVALID_JSON": text}
