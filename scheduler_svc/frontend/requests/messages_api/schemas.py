"""What clients of Anthropic's API may ask for, checked by the rules of `requests/schemas.py`: no parameter is accepted
that would have no effect, but for metadata."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from common.messages import MAX_PRIORITY
from scheduler_svc.frontend.requests.fields import INT32_MAX, FirstError, StopString, TemplateVariables
from scheduler_svc.frontend.requests.messages_api.blocks import SystemText, Turn, text_blocks
from scheduler_svc.frontend.requests.off_values import OffForMessages
from scheduler_svc.frontend.requests.old_media import without_old_media
from scheduler_svc.frontend.requests.sampling import MAX_STOPS
from scheduler_svc.frontend.requests.schemas import REQUEST_ID
from scheduler_svc.frontend.requests.strict import Allowing, Lenient, Strict
from scheduler_svc.frontend.requests.tools import check_different

TOOL_NAME = r"^[a-zA-Z0-9_.-]{1,128}$"


def _is_custom(kind: str) -> str:
    if kind != "custom":
        raise PydanticCustomError(
            "unsupported_parameter",
            "only tools of the type 'custom', which have their schema with them, are known here, and no {kind}",
            {"kind": repr(kind[:50])},
        )
    return kind


class MessageTool(Lenient):
    """A tool of the client's. Its calls follow the schema if it is `strict`."""

    place: ClassVar[str] = "tools"
    type: Annotated[str, AfterValidator(_is_custom)] = "custom"
    name: Annotated[str, Field(pattern=TOOL_NAME)]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None

    # No token depends on them.
    cache_control: Any = None
    eager_input_streaming: Any = None


def _different_names(tools: list[MessageTool]) -> list[MessageTool]:
    check_different(tool.name for tool in tools)
    return tools


class MessageToolChoice(Strict):
    """Whether the answer has to call a tool, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _names_a_tool(self) -> "MessageToolChoice":
        if (self.type == "tool") != (self.name is not None):
            raise PydanticCustomError("tool_choice", "'name' belongs to the type 'tool', which needs it")
        return self


class ThinkingConfig(Strict):
    """Whether the model thinks before it answers, and how long."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def _has_a_budget(self) -> "ThinkingConfig":
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise PydanticCustomError("thinking", "'budget_tokens' belongs to the type 'enabled', which needs it")
        return self


class OutputFormat(Strict):
    """A schema that the answer's text fits."""

    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Strict):
    """What the answer has to be, and how much the model thinks for it."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


def _clears_thoughts(kind: str) -> str:
    if not kind.startswith("clear_thinking_"):
        raise PydanticCustomError(
            "unsupported_parameter", "messages are not edited here, so there is no {kind}", {"kind": repr(kind[:50])}
        )
    return kind


class ContextEdit(Lenient):
    """What is to be left out of the conversation. Thoughts are: the chat template decides which ones."""

    place: ClassVar[str] = "context_management.edits"
    type: Annotated[str, AfterValidator(_clears_thoughts)]
    keep: Any = None


class ContextManagement(Strict):
    """How the conversation is to be edited."""

    edits: FirstError[ContextEdit] = []


class MessageRequest(OffForMessages, Allowing):
    """POST /v1/messages. Absent sampling parameters get the values that the model recommends."""

    model: str
    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)]
    messages: Annotated[FirstError[Turn], BeforeValidator(without_old_media), Field(min_length=1)]
    system: Annotated[FirstError[SystemText], BeforeValidator(text_blocks)] = []
    stop_sequences: Annotated[FirstError[StopString], Field(max_length=MAX_STOPS)] = []
    stream: bool = False
    temperature: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    tools: Annotated[FirstError[MessageTool], AfterValidator(_different_names)] = []
    tool_choice: MessageToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # its older place
    context_management: ContextManagement | None = None

    # Baton's own, as chats have them.
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    chat_template_kwargs: TemplateVariables = {}
    cache_salt: Annotated[str, Field(max_length=256)] = ""
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    timeout_s: Annotated[float, Field(gt=0.0, le=1e9)] | None = None
    request_id: Annotated[str, Field(pattern=f"^{REQUEST_ID}$")] | None = None
    resumable: bool = False

    @property
    def format(self) -> OutputFormat | None:
        """What the answer's text has to be."""
        return self.output_format or (self.output_config and self.output_config.format) or None

    @field_validator("tool_choice")
    @classmethod
    def _has_tools(cls, choice: MessageToolChoice, info: ValidationInfo) -> MessageToolChoice:
        tools = info.data.get("tools")
        if tools is not None and choice.type in ("any", "tool"):
            names = {tool.name for tool in tools}
            if not names or (choice.name is not None and choice.name not in names):
                raise PydanticCustomError("tool_choice", "it asks for a tool that 'tools' does not have")
        return choice

    @field_validator("output_format")
    @classmethod
    def _is_said_once(cls, form: OutputFormat, info: ValidationInfo) -> OutputFormat:
        config = info.data.get("output_config")
        if config is not None and config.format is not None:
            raise PydanticCustomError("output_format", "it is not allowed with 'output_config.format'")
        return form


class CountTokensRequest(MessageRequest):
    """POST /v1/messages/count_tokens: the same request, of which only the prompt counts."""

    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] = 1
