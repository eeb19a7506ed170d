"""Items between requests and the store: written with ids, read again, and put where a request refers to them."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from scheduler_svc.frontend.answers.responses.events import item_id
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.messages import TextPart
from scheduler_svc.frontend.requests.responses.items import (
    AdditionalToolsItem,
    CallOutputItem,
    CustomCallItem,
    FunctionCallItem,
    Item,
    ItemReference,
    MessageItem,
    ReasoningItem,
    StoredItems,
    ThoughtText,
)
from scheduler_svc.frontend.storing.responses import item_not_found


class _WithId(msgspec.Struct):
    id: str


_raws = msgspec.json.Decoder(list[Raw])
_ids = msgspec.json.Decoder(list[_WithId])
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "additional_tools": "at",
}


class SizedItem(NamedTuple):
    """A stored item, and the bytes of its JSON."""

    item: Item
    num_bytes: int


def read_items(data: Iterable[bytes]) -> list[SizedItem]:
    """Items from their JSON, which this API has written."""
    raws = [raw for part in data for raw in _raws.decode(part)]
    items = StoredItems.validate_python([json.loads(bytes(raw)) for raw in raws])
    return [SizedItem(item, len(raw)) for item, raw in zip(items, map(bytes, raws), strict=True)]


def references(items: Sequence[Item]) -> list[str]:
    """The ids of items that are elsewhere."""
    return [item.id for item in items if isinstance(item, ItemReference)]


def resolved(items: Sequence[Item], stored: Iterable[SizedItem], max_bytes: int) -> list[SizedItem]:
    """The items with what their references refer to; those that are none have no size.

    Args:
        max_bytes: of all that is put in the place of references, as often as it is.

    Raises:
        ApiError: (404) an item is not among the stored ones, or (400) it would be more.
    """
    by_id = {sized.item.id: sized for sized in stored}
    whole: list[SizedItem] = []
    left = max_bytes
    for item in items:
        if not isinstance(item, ItemReference):
            whole.append(SizedItem(item, 0))
            continue
        if (found := by_id.get(item.id)) is None:
            raise item_not_found(item.id)
        left -= found.num_bytes
        if left < 0:
            message = f"The conversation is too long: it has more than {max_bytes} bytes of items by reference."
            raise ApiError(400, message, code="invalid_value", param="input")
        whole.append(found)
    return whole


def page_of(data: bytes, *, after: str | None, limit: int, is_descending: bool) -> tuple[list[str], list[Raw], bool]:
    """A page of stored items: their ids, their JSON, and whether more come after it.

    Args:
        after: id of the last item of the page before.

    Raises:
        ApiError: (400) there is no such item.
    """
    raws, ids = _raws.decode(data), [one.id for one in _ids.decode(data)]
    if is_descending:
        raws.reverse()
        ids.reverse()
    start = 0
    if after is not None:
        if after not in ids:
            message = f"The response has no item '{after[:64]}'."
            raise ApiError(400, message, code="invalid_value", param="after")
        start = ids.index(after) + 1
    end = start + limit
    return ids[start:end], [Raw(bytes(raw)) for raw in raws[start:end]], len(ids) > end


def written(items: Sequence[Item], response_id: str) -> bytes:
    """JSON of a request's own items, as clients may list them: each with an id. Raises ApiError (400) for half a
    character, which no JSON of ours has."""
    return json_of([_written(item, number, response_id) for number, item in enumerate(items)])


def json_of(value: Any) -> bytes:
    """JSON of what a request says. Raises ApiError (400) for half a character."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        character = f"\\u{ord(error.object[error.start]):04x}"
        raise ApiError(400, f"The body has half a character ({character}).", code="invalid_value") from error


def _written(item: Item, number: int, response_id: str) -> dict[str, Any]:
    name = item.id or item_id(_PREFIXES[item.type], response_id, number, is_input=True)
    fields: dict[str, Any] = {"id": name, "type": item.type, "status": "completed"}
    match item:
        case MessageItem():
            return fields | {"role": item.role, "content": _parts(item.content, is_output=item.role == "assistant")}
        case FunctionCallItem():
            return fields | _called(item) | {"arguments": item.arguments}
        case CustomCallItem():
            return fields | _called(item) | {"input": item.input}
        case CallOutputItem():
            return fields | {"call_id": item.call_id, "output": _parts(item.output, is_output=False)}
        case ReasoningItem():
            texts = {"summary": _thoughts(item.summary), "content": _thoughts(item.content)}
            return fields | texts | {"encrypted_content": item.encrypted_content}
        case AdditionalToolsItem():
            return fields | {"role": "developer", "tools": [tool.model_dump() for tool in item.tools]}
    raise AssertionError("references were to be replaced")


def _called(item: FunctionCallItem | CustomCallItem) -> dict[str, Any]:
    named = {"call_id": item.call_id, "name": item.name}
    return named if item.namespace is None else named | {"namespace": item.namespace}


def _parts(parts: Sequence[TextPart], *, is_output: bool) -> list[dict[str, Any]]:
    if is_output:
        return [{"type": "output_text", "text": part.text, "annotations": [], "logprobs": []} for part in parts]
    return [{"type": "input_text", "text": part.text} for part in parts]


def _thoughts(parts: Sequence[ThoughtText]) -> list[dict[str, str]]:
    return [{"type": part.type, "text": part.text} for part in parts]
