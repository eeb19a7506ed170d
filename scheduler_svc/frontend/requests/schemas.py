"""What clients may ask for: OpenAI's parameters, checked. No parameter is accepted that would have no effect.

A parameter that is not supported is declared with the values that mean "off" and refused with any other; a
parameter that is not declared is refused as unknown. Metadata that changes no token is accepted and ignored.
"""

import json
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    FailFast,
    Field,
    SkipValidation,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from common.messages import MAX_BAD_WORDS, MAX_BIASES, MAX_LOGPROBS, MAX_PRIORITY
from scheduler_svc.frontend.requests.strict import Strict
from scheduler_svc.frontend.requests.structured import ResponseFormat, StructuredOutputs

INT32_MAX = 2**31 - 1
MAX_N = 128
MAX_PROMPTS = 1024
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_BIAS = 100
REQUEST_ID = r"[A-Za-z0-9._-]{1,64}"
DECIMAL = r"0|[1-9][0-9]{0,8}"

Item = TypeVar("Item")
FirstError = Annotated[list[Item], FailFast()]  # of a long list that is wrong, one item is described and not all


class Only:
    """Allows only the values that turn an unsupported parameter off."""

    def __init__(self, *values: Any) -> None:
        self._values = values

    def __call__(self, value: Any) -> Any:
        """`value`, if it is an allowed one."""
        if value in self._values:
            return value
        allowed = " or ".join(json.dumps(allowed) for allowed in (*self._values, None))
        raise PydanticCustomError("unsupported_parameter", f"this server supports only {allowed}")


def _stop_list(value: Any) -> Any:
    """One string or several -> a list."""
    return [value] if isinstance(value, str) else value


def _prompt_list(value: Any) -> Any:
    """One prompt or several, each as text or as token ids -> a list of prompts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(type(item) is int for item in value):
            return [value]
        if all(isinstance(item, str) for item in value) or all(_is_ids(item) for item in value):
            return value
    raise PydanticCustomError(
        "prompt_type", "it should be a string, a list of strings, a list of token ids, or a list of lists of token ids"
    )


def _minus_one_is_off(top_k: int) -> int:
    """0 and -1 both keep all tokens."""
    return max(top_k, 0)


def _biases(value: Any) -> dict[int, float]:
    """An object whose names are token ids -> the bias of each of these tokens."""
    if not isinstance(value, dict):
        raise PydanticCustomError("bias_type", "it should be an object with a bias for each token id")
    if len(value) > MAX_BIASES:
        raise PydanticCustomError("biases", f"it has {len(value)} biases, the limit is {MAX_BIASES}")
    for token_id, bias in value.items():
        if re.fullmatch(DECIMAL, token_id, re.ASCII) is None:
            raise PydanticCustomError("bias_token", f"{token_id[:50]!r} is no token id")
        if type(bias) not in (int, float):
            raise PydanticCustomError("bias_type", f"the bias of {token_id} should be a number")
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            limits = f"it should be -{MAX_BIAS} to {MAX_BIAS}"
            raise PydanticCustomError("bias", f"the bias of {token_id} is {str(bias)[:50]}, {limits}")
    return {int(token_id): float(bias) for token_id, bias in value.items()}


def _is_ids(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(type(token) is int for token in item)


def _content_parts(value: Any) -> Any:
    """Text, or a list of parts -> a list of parts."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, list):
        return value
    raise PydanticCustomError("content_type", "it should be a string or a list of text parts")


class StreamOptions(Strict):
    """What a stream carries besides its text."""

    include_usage: bool = False
    include_obfuscation: Annotated[Any, AfterValidator(Only(False))] = None


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
NumLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS - 1)]


class GenerationRequest(Strict):
    """The parameters of both endpoints. Absent sampling parameters get the values that the model recommends."""

    model: str
    n: Annotated[int, Field(ge=1, le=MAX_N)] = 1
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX), AfterValidator(_minus_one_is_off)] | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Annotated[list[StopString], BeforeValidator(_stop_list), Field(max_length=MAX_STOPS)] = []
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] = []
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] = 0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100.0)] | None = None
    logit_bias: Annotated[dict[int, float], BeforeValidator(_biases)] = {}
    bad_words: Annotated[list[StopString], Field(max_length=MAX_BAD_WORDS)] = []
    allowed_token_ids: Annotated[FirstError[TokenId], Field(min_length=1)] = []  # an empty one would ban all
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, Field(max_length=256)] = ""
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0  # lower values are served earlier
    timeout_s: Annotated[float, Field(gt=0.0, le=1e9)] | None = None

    # A client that wants to resume chooses the id itself, as it may never receive one that was chosen here.
    request_id: Annotated[str, Field(pattern=f"^{REQUEST_ID}$")] | None = None
    resumable: bool = False  # the request continues for a while when its client's connection breaks

    # Metadata: no token depends on it.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    prompt_logprobs: NumLogprobs | None = None

    @property
    def num_listed_prompt_logprobs(self) -> int:
        """Log-probabilities that the answer lists of each prompt token: its own and those of the likeliest."""
        return 0 if self.prompt_logprobs is None else 1 + self.prompt_logprobs

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
        if not info.data.get("stream"):
            raise PydanticCustomError("stream_options", "it is allowed only with 'stream': true")
        return options


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Annotated[
        list[SkipValidation[str | list[int]]],  # `_prompt_list` has looked at each of maybe 100,000 token ids
        BeforeValidator(_prompt_list),
        Field(max_length=MAX_PROMPTS),
    ]
    echo: bool = False
    max_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] = 16
    best_of: int | None = None
    logprobs: NumLogprobs | None = None

    suffix: Annotated[Any, AfterValidator(Only(""))] = None

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


class TextPart(Strict):
    """A part of a message. There is no other kind: the models served here read text."""

    type: Literal["text"]
    text: str


class FunctionCall(Strict):
    """The function that an assistant called."""

    name: str
    arguments: str


class ToolCall(Strict):
    """A call that an assistant made earlier in the conversation."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Strict):
    """One message, as clients write it and as this API returned it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[FirstError[TextPart], BeforeValidator(_content_parts)] = []
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: FirstError[ToolCall] = []
    tool_call_id: str | None = None

    refusal: Annotated[Any, AfterValidator(Only())] = None
    annotations: Annotated[Any, AfterValidator(Only([]))] = None
    audio: Annotated[Any, AfterValidator(Only())] = None
    function_call: Annotated[Any, AfterValidator(Only())] = None


class Tool(Strict):
    """A function that the model is told about."""

    type: Literal["function"]
    function: dict[str, Any]


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions. Tools are shown to the model; its calls come back as it writes them, as text."""

    messages: Annotated[FirstError[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    tools: FirstError[Tool] = []
    chat_template_kwargs: dict[str, Any] = {}
    logprobs: bool = False
    top_logprobs: NumLogprobs = 0

    tool_choice: Annotated[Any, AfterValidator(Only("auto", "none"))] = None
    parallel_tool_calls: Annotated[Any, AfterValidator(Only(True))] = None
    functions: Annotated[Any, AfterValidator(Only())] = None
    function_call: Annotated[Any, AfterValidator(Only())] = None
    modalities: Annotated[Any, AfterValidator(Only(["text"]))] = None
    audio: Annotated[Any, AfterValidator(Only())] = None
    prediction: Annotated[Any, AfterValidator(Only())] = None
    web_search_options: Annotated[Any, AfterValidator(Only())] = None
    reasoning_effort: Annotated[Any, AfterValidator(Only())] = None
    verbosity: Annotated[Any, AfterValidator(Only())] = None

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, top_logprobs: int, info: ValidationInfo) -> int:
        if top_logprobs and not info.data.get("logprobs"):
            raise PydanticCustomError("top_logprobs", "it is allowed only with 'logprobs': true")
        return top_logprobs


class DrainRequest(Strict):
    """POST /admin/executors/{executor}/drain."""

    finish: bool = False  # let its sequences end there, instead of handing them over
