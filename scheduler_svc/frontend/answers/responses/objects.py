"""The objects of the Responses API, as msgspec writes them."""

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from scheduler_svc.frontend.answers.openai_objects import TokenLogprob, Usage, to_json

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputText(Struct, frozen=True):
    """The text of a message."""

    text: str
    type: str = "output_text"
    annotations: list[str] = []  # of which there are none
    logprobs: list[TokenLogprob] = []


class ReasoningText(Struct, frozen=True):
    """The text of a thought; its type is `summary_text` where it stands in the summary."""

    text: str
    type: str = "reasoning_text"


class OutputMessage(Struct, frozen=True, tag_field="type", tag="message"):
    """What the model said."""

    id: str
    status: ItemStatus
    content: list[OutputText]
    role: str = "assistant"


class OutputReasoning(Struct, frozen=True, tag_field="type", tag="reasoning"):
    """What the model thought: in `content`, or in `summary` if that was asked for."""

    id: str
    status: ItemStatus
    summary: list[ReasoningText] = []
    content: list[ReasoningText] = []
    encrypted_content: str | None = None


class OutputCall(Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call of a function."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class OutputCustomCall(Struct, frozen=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


OutputItem = OutputMessage | OutputReasoning | OutputCall | OutputCustomCall


class InputTokensDetails(Struct, frozen=True):
    """How much of the conversation was in the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True):
    """How much of the answer was thought, with its tags."""

    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True):
    """Tokens that were read and written."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> "ResponseUsage":
        """The same as chats have it."""
        details = usage.completion_tokens_details
        return cls(
            usage.prompt_tokens,
            InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            usage.completion_tokens,
            OutputTokensDetails(0 if details is UNSET else details.reasoning_tokens),
            usage.total_tokens,
        )


class ResponseError(Struct, frozen=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(Struct, frozen=True):
    """Why an answer was cut short."""

    reason: str


class ResponseHead(Struct, frozen=True, kw_only=True):
    """What stands in every version of a response: what was asked, as far as clients read it back."""

    id: str
    created_at: int
    model: str
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    object: str = "response"
    truncation: str = "disabled"


class ResponseTail(Struct, frozen=True, kw_only=True):
    """What follows from the answer, beside its output."""

    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None


class Response(ResponseHead, kw_only=True, frozen=True):
    """A whole response, as `response_json` puts it together."""

    status: ResponseStatus
    output: list[OutputItem]
    completed_at: int | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    usage: ResponseUsage | None


class DeletedResponse(Struct, frozen=True):
    """What is left of a response."""

    id: str
    object: str = "response"
    deleted: bool = True


class InputItems(Struct, frozen=True):
    """A page of the items that a response answers."""

    data: list[Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


NO_TAIL = to_json(ResponseTail())
NO_ITEMS = b"[]"


def response_json(head: bytes, status: ResponseStatus, output: bytes = NO_ITEMS, tail: bytes = NO_TAIL) -> Raw:
    """A response, put together from the JSON of its parts.

    Args:
        head, output, tail: of a `ResponseHead`, a list of items, and a `ResponseTail`.
    """
    return Raw(b'%b,"status":"%b","output":%b,%b' % (head[:-1], status.encode(), output, tail[1:]))


# --- the data of events; names and numbers stand outside ---


class ResponseData(Struct, frozen=True):
    """Data of the events of a whole response."""

    response: Raw


class ItemData(Struct, frozen=True):
    """Data of the beginning and the end of an item."""

    output_index: int
    item: OutputItem


class PartData(Struct, frozen=True):
    """Data of the beginning and the end of an item's part, which is content or a summary."""

    item_id: str
    output_index: int
    part: OutputText | ReasoningText
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET


class DeltaData(Struct, frozen=True):
    """Data of new text; `logprobs` is there for the text of messages."""

    item_id: str
    output_index: int
    delta: str
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class TextData(Struct, frozen=True):
    """Data of a text that is whole."""

    item_id: str
    output_index: int
    text: str
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class InputData(Struct, frozen=True):
    """Data of a custom call's input that is whole."""

    item_id: str
    output_index: int
    input: str


class ArgumentsData(Struct, frozen=True):
    """Data of a call's arguments that are whole."""

    item_id: str
    output_index: int
    arguments: str
    name: str
