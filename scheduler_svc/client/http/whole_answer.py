"""A stream's events put together to the answer that the service gives to a request that does not stream; pure."""

from collections import defaultdict
from typing import Any

from scheduler_svc.client.http.growing_message import GrowingMessage

Json = dict[str, Any]


class WholeAnswer:
    """Takes all events of one stream, of /v1/completions or /v1/chat/completions, whose last one holds `usage`."""

    def __init__(self) -> None:
        self._last_event: Json = {}
        self._last_chunks: dict[int, Json] = {}
        self._texts: defaultdict[int, list[str]] = defaultdict(list)
        self._messages: defaultdict[int, GrowingMessage] = defaultdict(GrowingMessage)
        self._logprobs: dict[int, Json] = {}

    def add(self, event: Json) -> None:
        """The next event."""
        self._last_event = event
        for chunk in event["choices"]:
            index = chunk["index"]
            self._last_chunks[index] = chunk
            if "text" in chunk:
                self._texts[index].append(chunk["text"])
            else:
                self._messages[index].add(chunk["delta"])
            if chunk.get("logprobs"):
                _extend(self._logprobs.setdefault(index, {}), chunk["logprobs"])

    def json(self) -> Json:
        """The answer, once the stream has ended."""
        choices = [self._choice(index) for index in sorted(self._last_chunks)]
        kind = str(self._last_event.get("object", "")).removesuffix(".chunk")
        return {**self._last_event, "object": kind, "choices": choices}

    def _choice(self, index: int) -> Json:
        chunk, logprobs = self._last_chunks[index], self._logprobs.get(index)
        if "text" in chunk:
            return {**chunk, "text": "".join(self._texts[index]), "logprobs": logprobs}
        return {
            "index": index,
            "message": self._messages[index].json(),
            "finish_reason": chunk.get("finish_reason"),
            "logprobs": logprobs,
        }


def _extend(logprobs: Json, more: Json) -> None:
    """Log-probabilities are lists with an entry for each token: a chunk's go on where those before it ended."""
    for name, value in more.items():
        if isinstance(value, list):
            logprobs.setdefault(name, []).extend(value)
        else:
            logprobs[name] = value
