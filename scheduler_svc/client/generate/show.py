"""How `baton generate` writes answers: text, calls of tools, rows of tokens, or one JSON object."""

from collections.abc import Iterable
from typing import Any

import msgspec

from scheduler_svc.client.chat.view import AnswerView
from scheduler_svc.client.generate.token_rows import prompt_rows, token_rows
from scheduler_svc.client.http.growing_message import GrowingMessage
from scheduler_svc.client.output import say, write_text

Json = dict[str, Any]

_OF_CHATS = ("tool_calls", "reasoning_content")


def show_choice(chunks: Iterable[Json], *, as_rows: bool) -> None:
    """Write one choice to stdout while it comes.

    Args:
        chunks: of a completion or of a chat; a whole choice is one chunk.
        as_rows: write its log-probabilities, a line for each token, and not its text.
    """
    if as_rows:
        for chunk in chunks:
            for row in token_rows(chunk.get("logprobs")):
                write_text(f"{row}\n")
        return
    view, message = AnswerView(shows_thought=False), GrowingMessage()
    try:
        for chunk in chunks:
            delta = _delta(chunk)
            message.add(delta)
            view.add(delta)
    finally:
        view.stop_thinking()
    view.end(message.calls)
    if not (message.content or message.calls):
        write_text("\n")  # each answer has a line


def show_prompt(answer: Json, num_likeliest: int | None) -> None:
    """Write a line to stdout for each token of the prompt, if an answer has its log-probabilities."""
    for row in prompt_rows(_prompt_logprobs(answer), num_likeliest or 0):
        write_text(f"{row}\n")


def show_choices(choices: list[Json], *, as_rows: bool) -> None:
    """Write whole choices to stdout, and their numbers to stderr."""
    for choice in choices:
        if len(choices) > 1:
            say(f"── answer {choice['index'] + 1} of {len(choices)} ──", dim=True)
        show_choice([choice], as_rows=as_rows)


def as_json(answer: Json) -> str:
    """The answer as one line of JSON: the first choice's `text`, then all fields that a script may need."""
    choices = [_choice(choice) for choice in answer["choices"]]
    kept = {key: answer.get(key) for key in ("id", "model", "system_fingerprint", "usage")}
    if listed := _prompt_logprobs(answer):
        kept["prompt_logprobs"] = listed
    return msgspec.json.encode({"text": choices[0]["text"], "choices": choices, **kept}).decode()


def _choice(choice: Json) -> Json:
    """A choice of either endpoint, with what it has beyond its text."""
    message = choice.get("message") or {}
    text = choice["text"] if "text" in choice else message.get("content") or ""
    extra = {key: message[key] for key in _OF_CHATS if message.get(key)}
    if choice.get("logprobs"):
        extra["logprobs"] = choice["logprobs"]
    return {"index": choice["index"], "text": text, "finish_reason": choice.get("finish_reason"), **extra}


def _prompt_logprobs(answer: Json) -> list[Json | None]:
    """Those of a completion's prompt, which all choices have, or of a chat."""
    return answer.get("prompt_logprobs") or answer["choices"][0].get("prompt_logprobs") or []


def _delta(chunk: Json) -> Json:
    """Return what a piece of a choice adds to the answer. A whole message becomes one piece of a stream."""
    if "text" in chunk:
        return {"content": chunk["text"]}
    delta: Json | None = chunk.get("delta")
    if delta is not None:
        return delta
    message = chunk["message"]
    calls = [{"index": number, **call} for number, call in enumerate(message.get("tool_calls") or ())]
    return {**message, "tool_calls": calls}
