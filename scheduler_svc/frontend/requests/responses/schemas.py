"""What a client may ask of the Responses API, checked. As in `requests/schemas.py`, no parameter is accepted that would
have no effect."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from scheduler_svc.frontend.requests.fields import INT32_MAX, FirstError, NumLogprobs, Only, TemplateVariables
from scheduler_svc.frontend.requests.off_values import Null
from scheduler_svc.frontend.requests.old_media import without_old_media
from scheduler_svc.frontend.requests.responses.items import InputItem, input_list
from scheduler_svc.frontend.requests.responses.tools import ToolList, choice_of
from scheduler_svc.frontend.requests.sampling import SamplingFields
from scheduler_svc.frontend.requests.strict import Strict
from scheduler_svc.frontend.requests.structured import ANY_OBJECT
from scheduler_svc.frontend.requests.thinking import AskedEffort, ThinkingFields
from scheduler_svc.frontend.requests.tools import ToolChoice

MAX_ITEMS = 4096
MAX_METADATA = 16
RESPONSE_ID = r"resp_[0-9a-f]{24}"
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
# What a client may ask to be included. All but the two above are of tools and inputs that are not served here, so that
# there is never anything to include.
INCLUDABLE = (
    *(LOGPROBS, ENCRYPTED, "web_search_call.action.sources", "web_search_call.results", "file_search_call.results"),
    *("code_interpreter_call.outputs", "computer_call_output.output.image_url", "message.input_image.image_url"),
)

MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class TextFormat(Strict):
    """What the text has to be. A schema binds it whether it is `strict` or not."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(max_length=64)] | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    description: str | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_what_its_type_takes(self) -> "TextFormat":
        fields = self.model_fields_set - {"type"}
        if self.type == "json_schema" and not {"name", "json_schema"} <= fields:
            raise PydanticCustomError("text_format", "'type': 'json_schema' takes 'name' and 'schema'")
        if self.type != "json_schema" and fields:
            raise PydanticCustomError("text_format", "'type': '{type}' takes nothing else", {"type": self.type})
        return self

    @property
    def asked_schema(self) -> dict[str, Any] | None:
        """The schema of the text; None if it may be anything."""
        return ANY_OBJECT if self.type == "json_object" else self.json_schema


class TextOptions(Strict):
    """`text` of a request."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None  # a hint, which no template here shows


class Reasoning(Strict):
    """How the model thinks, and whether its thought is shown as a summary: then all of it stands there."""

    effort: AskedEffort = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None  # the template decides which thoughts it shows

    @property
    def has_summary(self) -> bool:
        """Whether the thought stands in `summary` instead of in `content`."""
        return self.summary is not None or self.generate_summary is not None


class ResponseStreamOptions(Strict):
    """`stream_options` of a request."""

    include_obfuscation: Annotated[Any, AfterValidator(Only(False))] = None


class ResponseRequest(ThinkingFields, SamplingFields):
    """POST /v1/responses."""

    model: str
    input: Annotated[
        FirstError[InputItem],
        BeforeValidator(without_old_media),
        BeforeValidator(input_list),
        Field(max_length=MAX_ITEMS),
    ] = []
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(pattern=f"^{RESPONSE_ID}$")] | None = None
    store: bool = True
    background: bool = False
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    include: list[Literal[INCLUDABLE]] = []  # type: ignore[valid-type]
    max_output_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    tools: ToolList = []
    tool_choice: Annotated[ToolChoice | None, PlainValidator(choice_of)] = None
    parallel_tool_calls: bool = True
    top_logprobs: NumLogprobs = 0
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=MAX_METADATA)] = {}
    chat_template_kwargs: TemplateVariables = {}

    truncation: Annotated[Any, AfterValidator(Only("disabled"))] = None
    conversation: Null = None
    prompt: Null = None
    moderation: Null = None
    context_management: Null = None

    # No token depends on them.
    max_tool_calls: int | None = None  # of tools that a server runs: there are none here
    client_metadata: dict[str, Any] | None = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    cache_prompt: bool | None = None
    keep_alive: str | float | None = None

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer's text has log-probabilities."""
        return LOGPROBS in self.include or self.top_logprobs > 0

    @field_validator("background")
    @classmethod
    def _is_stored(cls, background: bool, info: ValidationInfo) -> bool:
        if background and info.data.get("store") is False:
            raise PydanticCustomError("background", "it is not allowed with 'store': false")
        return background
