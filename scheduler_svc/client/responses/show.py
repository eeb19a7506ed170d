"""How responses are shown: text and calls on stdout, the thought on stderr; their items; and how they have failed."""

import sys
from typing import Any

import msgspec

from common.installation import this_command
from scheduler_svc.client.chat.view import AnswerView
from scheduler_svc.client.errors import RequestFailed
from scheduler_svc.client.http.growing_message import Call
from scheduler_svc.client.output import AnswerTimer, say

Json = dict[str, Any]

_THOUGHTS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")


class ResponseView:
    """Shows one response while it comes.

    Args:
        timer: measures the answer; None for one that may have been written long ago.
    """

    def __init__(self, *, shows_thought: bool, timer: AnswerTimer | None) -> None:
        self._view = AnswerView(shows_thought=shows_thought)
        self._timer = timer
        self._calls: list[Call] = []

    def add(self, event: Json) -> None:
        """Show what an event adds, but for calls: `end` shows them."""
        delta = delta_of(event)
        if self._timer is not None:
            self._timer.see(_chunk(event, delta))
        self._view.add(delta)
        if event["type"] == "response.output_item.done" and (call := _call(event.get("item"))):
            self._calls.append(call)

    def stop(self) -> None:
        """It has broken off."""
        self._view.stop_thinking()

    def end(self) -> None:
        """It has ended."""
        self._view.end(self._calls)
        if self._timer is not None:
            self._timer.report()


def delta_of(event: Json) -> Json:
    """What an event adds to text or thought, as the delta of a chat would have it."""
    text = event.get("delta")
    match event.get("type"):
        case "response.output_text.delta" | "response.refusal.delta":
            return {"content": text}
        case name if name in _THOUGHTS:
            return {"reasoning_content": text}
    return {}


def show_response(response: Json, *, shows_thought: bool) -> None:
    """Write a whole response."""
    view, calls = AnswerView(shows_thought=shows_thought), []
    for item in response.get("output") or ():
        match item.get("type"):
            case "reasoning" if shows_thought:
                view.add({"reasoning_content": _text(item.get("summary")) or _text(item.get("content"))})
            case "message":
                view.add({"content": _text(item.get("content"))})
            case "function_call" if call := _call(item):
                calls.append(call)
    view.end(calls)


def item_line(item: Json) -> str:
    """An item of a conversation for people: `user: hello`."""
    match item.get("type", "message"):
        case "message":
            return f"{item.get('role')}: {_text(item.get('content'))}"
        case "function_call":
            return f"call {item.get('call_id')}: {_call(item)}"
        case "function_call_output":
            return f"output of {item.get('call_id')}: {_text(item.get('output'))}"
        case "reasoning":
            return f"thought: {_text(item.get('summary')) or _text(item.get('content'))}"
        case kind:
            return f"{kind}: {as_json(item)}"


def as_json(value: Any) -> str:
    """One line of JSON."""
    return msgspec.json.encode(value).decode()


def settle(response: Json) -> None:
    """Say what a response that has ended lacks. On a terminal also say how to go on from it.

    Raises:
        RequestFailed: it failed, or was cancelled.
    """
    status = response.get("status")
    if status == "failed":
        error = response.get("error") or {}
        raise RequestFailed(str(error.get("message") or "the response failed"), code=str(error.get("code") or ""))
    if status == "cancelled":
        raise RequestFailed("the response was cancelled", code="cancelled")
    if not sys.stderr.isatty():
        return
    if status == "incomplete":
        say("(cut off: it has as many tokens as it may have)", dim=True)
    if response.get("store"):
        calls = [call for item in response.get("output") or () if (call := _call(item))]
        outputs = "".join(f" --tool-output {call.id}=RESULT" for call in calls)
        say(
            f"baton: `{this_command()} responses create --previous {response['id']}{outputs}` goes on from it", dim=True
        )


def _chunk(event: Json, delta: Json) -> Json:
    """An event as a timer of chats takes it."""
    usage = (event.get("response") or {}).get("usage")
    counts = {"usage": {"completion_tokens": usage["output_tokens"]}} if usage else {}
    return {"choices": [{"delta": delta}], **counts}


def _call(item: Any) -> Call | None:
    """The call that an item is."""
    if not isinstance(item, dict) or item.get("type") != "function_call":
        return None
    return Call(str(item.get("call_id")), str(item.get("name")), str(item.get("arguments") or ""))


def _text(content: Any) -> str:
    """The text of an item's content: a string, or parts."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or part.get("refusal") or "" for part in content or ())
