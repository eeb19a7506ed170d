"""What clients may ask for: OpenAI's parameters, checked. No parameter is accepted that would have no effect.

A parameter that is not supported is declared with the values that mean "off" (`off_values.py`) and refused with any
other; a parameter that is not declared is refused as unknown. Metadata that changes no token is accepted and ignored.
"""

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    SkipValidation,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from scheduler_svc.frontend.requests.fields import (
    INT32_MAX,
    FirstError,
    Instead,
    NumLogprobs,
    Only,
    TemplateVariables,
    prompt_list,
)
from scheduler_svc.frontend.requests.messages import ChatMessage
from scheduler_svc.frontend.requests.off_values import OffForAll, OffForChats, OffForCompletions
from scheduler_svc.frontend.requests.old_media import without_old_media
from scheduler_svc.frontend.requests.sampling import SamplingFields
from scheduler_svc.frontend.requests.strict import Strict
from scheduler_svc.frontend.requests.structured import GuidedDecoding, ResponseFormat, StructuredOutputs
from scheduler_svc.frontend.requests.thinking import AskedEffort, ChatReasoning, ThinkingFields
from scheduler_svc.frontend.requests.tools import ToolChoice, ToolList, different_names, read_choice

MAX_N = 128
MAX_PROMPTS = 1024
REQUEST_ID = r"[A-Za-z0-9._-]{1,64}"


class StreamOptions(Strict):
    """What a stream carries besides its text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Annotated[Any, AfterValidator(Only(False))] = None


class GenerationRequest(GuidedDecoding, OffForAll, SamplingFields):
    """The parameters of both endpoints. Absent sampling parameters get the values that the model recommends."""

    model: str
    n: Annotated[int, Field(ge=1, le=MAX_N)] = 1
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    # A client that wants to resume chooses the id itself, as it may never receive one that was chosen here.
    request_id: Annotated[str, Field(pattern=f"^{REQUEST_ID}$")] | None = None
    resumable: bool = False  # the request continues for a while when its client's connection breaks

    prompt_logprobs: NumLogprobs | None = None

    @property
    def num_listed_prompt_logprobs(self) -> int:
        """Log-probabilities that the answer lists of each prompt token: its own and those of the likeliest."""
        return 0 if self.prompt_logprobs is None else 1 + self.prompt_logprobs

    @property
    def has_usage(self) -> bool:
        """Whether the answer ends with its usage."""
        return not self.stream or (self.stream_options is not None and self.stream_options.include_usage)

    @property
    def has_chunk_usage(self) -> bool:
        """Whether each chunk of the answer's stream has the usage so far."""
        return self.stream and self.stream_options is not None and self.stream_options.continuous_usage_stats

    @field_validator("prompt_logprobs")
    @classmethod
    def _needs_a_whole_answer(cls, prompt_logprobs: int, info: ValidationInfo) -> int:
        for name in ("stream", "resumable"):  # the rest of an answer comes as a stream
            if info.data.get(name):
                raise PydanticCustomError("prompt_logprobs", f"it is not allowed with '{name}': true")
        return prompt_logprobs

    @field_validator("stream_options")
    @classmethod
    def _needs_a_stream(cls, options: StreamOptions, info: ValidationInfo) -> StreamOptions:
        if not info.data.get("stream") and (options.include_usage or options.continuous_usage_stats):
            raise PydanticCustomError("stream_options", "it is allowed only with 'stream': true")
        return options


class CompletionRequest(GenerationRequest, OffForCompletions):
    """POST /v1/completions."""

    prompt: Annotated[
        list[SkipValidation[str | list[int]]],  # `prompt_list` has looked at each of maybe 100,000 token ids
        BeforeValidator(prompt_list),
        Field(max_length=MAX_PROMPTS),
    ]
    echo: bool = False
    add_special_tokens: bool = True
    max_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] = 16
    best_of: int | None = None
    logprobs: NumLogprobs | None = None

    @field_validator("max_tokens")
    @classmethod
    def _shows_something(cls, max_tokens: int, info: ValidationInfo) -> int:
        if max_tokens == 0 and not info.data.get("echo"):
            raise PydanticCustomError("max_tokens", "0 is allowed only with 'echo': true")
        return max_tokens

    @field_validator("best_of")
    @classmethod
    def _is_n(cls, best_of: int, info: ValidationInfo) -> int:
        if best_of != info.data.get("n"):
            raise PydanticCustomError("unsupported_parameter", "this server supports only the value of 'n'")
        return best_of


class ChatRequest(ThinkingFields, GenerationRequest, OffForChats):
    """POST /v1/chat/completions."""

    messages: Annotated[FirstError[ChatMessage], BeforeValidator(without_old_media), Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    tools: Annotated[ToolList, AfterValidator(different_names)] = []
    tool_choice: Annotated[ToolChoice | None, PlainValidator(read_choice)] = None
    parallel_tool_calls: bool = True
    functions: Annotated[Any, AfterValidator(Instead("tools"))] = None
    function_call: Annotated[Any, AfterValidator(Instead("tool_choice"))] = None
    chat_template_kwargs: TemplateVariables = {}
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    reasoning_effort: AskedEffort = None
    reasoning: ChatReasoning | None = None
    include_reasoning: bool = True
    logprobs: bool = False
    top_logprobs: NumLogprobs = 0

    @property
    def shows_thought(self) -> bool:
        """Whether the answer has its thought."""
        return self.include_reasoning and not (self.reasoning is not None and self.reasoning.exclude)

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, top_logprobs: int, info: ValidationInfo) -> int:
        if top_logprobs and not info.data.get("logprobs"):
            raise PydanticCustomError("top_logprobs", "it is allowed only with 'logprobs': true")
        return top_logprobs

    @field_validator("continue_final_message")
    @classmethod
    def _has_something_to_continue(cls, continues: bool, info: ValidationInfo) -> bool:
        if continues and info.data.get("add_generation_prompt"):
            raise PydanticCustomError("continue_final_message", "it is not allowed with 'add_generation_prompt': true")
        messages = info.data.get("messages")
        if continues and messages and messages[-1].role != "assistant":
            raise PydanticCustomError("continue_final_message", "the last message is not the assistant's")
        return continues


class DrainRequest(Strict):
    """POST /admin/executors/{executor}/drain."""

    finish: bool = False  # let its sequences end there, instead of handing them over
