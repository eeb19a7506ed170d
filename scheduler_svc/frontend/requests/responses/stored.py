"""Items between requests and the store: written with ids, read again, and put where a request refers to them."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from scheduler_svc.frontend.answers.responses.events import item_id
from scheduler_svc.frontend.requests.messages import TextPart
from scheduler_svc.frontend.requests.responses.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    ItemReference,
    MessageItem,
    ReasoningItem,
    StoredItems,
    ThoughtText,
)

_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def read_items(data: Iterable[bytes]) -> list[Item]:
    """Items from their JSON, which this API has written."""
    return [item for part in data for item in StoredItems.validate_python(json.loads(part))]


def references(items: Sequence[Item]) -> list[str]:
    """The ids of items that are elsewhere."""
    return [item.id for item in items if isinstance(item, ItemReference)]


def resolved(items: Sequence[Item], stored: Iterable[Item]) -> list[Item] | str:
    """The items with what their references refer to; the id of one that is not among the stored ones."""
    by_id = {item.id: item for item in stored}
    whole: list[Item] = []
    for item in items:
        if not isinstance(item, ItemReference):
            whole.append(item)
        elif (found := by_id.get(item.id)) is not None:
            whole.append(found)
        else:
            return item.id
    return whole


def written(items: Sequence[Item], response_id: str) -> bytes:
    """JSON of a request's own items, as clients may list them: each with an id."""
    return json.dumps([_written(item, number, response_id) for number, item in enumerate(items)]).encode()


def _written(item: Item, number: int, response_id: str) -> dict[str, Any]:
    name = item.id or item_id(_PREFIXES[item.type], response_id, number, is_input=True)
    fields: dict[str, Any] = {"id": name, "type": item.type, "status": "completed"}
    match item:
        case MessageItem():
            return fields | {"role": item.role, "content": _parts(item.content, is_output=item.role == "assistant")}
        case FunctionCallItem():
            return fields | {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
        case FunctionCallOutputItem():
            return fields | {"call_id": item.call_id, "output": _parts(item.output, is_output=False)}
        case ReasoningItem():
            texts = {"summary": _thoughts(item.summary), "content": _thoughts(item.content)}
            return fields | texts | {"encrypted_content": item.encrypted_content}
    raise AssertionError("references were to be replaced")


def _parts(parts: Sequence[TextPart], *, is_output: bool) -> list[dict[str, Any]]:
    if is_output:
        return [{"type": "output_text", "text": part.text, "annotations": [], "logprobs": []} for part in parts]
    return [{"type": "input_text", "text": part.text} for part in parts]


def _thoughts(parts: Sequence[ThoughtText]) -> list[dict[str, str]]:
    return [{"type": part.type, "text": part.text} for part in parts]
