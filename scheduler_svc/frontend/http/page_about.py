"""What the page has to know before it shows anything: who its reader is, and what a chat may be asked for."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import msgspec
from annotated_types import Ge, Gt, Le, Lt
from msgspec import Struct
from pydantic.fields import FieldInfo

from common import __version__
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.schemas import ChatRequest
from scheduler_svc.frontend.requests.thinking import EFFORTS
from scheduler_svc.frontend.text.tokenizer import Tokenizer

Kind = Literal["number", "integer", "boolean", "strings", "choice", "json", "text"]

# In the order in which the page offers them. What it sets itself (the messages, streaming, resuming, one choice) and
# other names of the same thing (`guided_json`) are not here.
_OFFERED: tuple[tuple[str, Kind, str], ...] = (
    ("temperature", "number", "How freely tokens are drawn; 0 always takes the likeliest."),
    ("top_p", "number", "Draw from this share of probability."),
    ("top_k", "integer", "Draw from so many likeliest tokens; 0 is all."),
    ("min_p", "number", "Drop tokens this much less likely than the likeliest."),
    ("max_completion_tokens", "integer", "Tokens that the answer may have; not set is as many as fit."),
    ("seed", "integer", "The same seed draws the same tokens."),
    ("stop", "strings", "The text ends before these strings, one a line."),
    ("presence_penalty", "number", "Taken from the scores of tokens that the answer has."),
    ("frequency_penalty", "number", "The same, for each time."),
    ("repetition_penalty", "number", "Scores of the prompt's and the answer's tokens are divided by it."),
    ("reasoning_effort", "choice", "How much the model thinks before it answers."),
    ("thinking_token_budget", "integer", "Tokens that the thought may have."),
    ("include_reasoning", "boolean", "Whether the thought is shown."),
    ("chat_template_kwargs", "json", "Variables of the chat template, as an object."),
    ("tools", "json", "Functions that the model may call, as OpenAI's list of tools."),
    ("tool_choice", "json", 'Which of them: "auto", "none", "required", or one.'),
    ("parallel_tool_calls", "boolean", "Whether an answer may have several calls."),
    ("response_format", "json", 'What the text has to be, such as {"type": "json_object"}.'),
    ("structured_outputs", "json", "The same, as vLLM has it."),
    ("logit_bias", "json", "Added to the scores of tokens: an object of token ids."),
    ("bad_words", "strings", "Strings that are not generated, one a line."),
    ("allowed_token_ids", "json", "Token ids, a list: no other is generated."),
    ("stop_token_ids", "json", "More token ids, a list, that end the answer."),
    ("min_tokens", "integer", "Nothing ends the answer before so many tokens."),
    ("ignore_eos", "boolean", "The model's own stop tokens do not end the answer."),
    ("include_stop_str_in_output", "boolean", "The text ends with its stop string."),
    ("skip_special_tokens", "boolean", "Special tokens have no text."),
    ("continue_final_message", "boolean", "Go on with the last message, which is the assistant's."),
    ("priority", "integer", "Lower goes earlier."),
    ("timeout_s", "number", "Seconds after which the answer ends with an error."),
    ("cache_salt", "text", "Only requests with the same salt share cached prompts."),
)
_OF_THOUGHT = ("reasoning_effort", "thinking_token_budget", "include_reasoning")
_OF_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


class Parameter(Struct, frozen=True, omit_defaults=True):
    """A parameter of chats as the page offers it.

    Attributes:
        default: what the server takes where a request says nothing; None for "not set".
        choices: of the kind `choice`.
    """

    name: str
    kind: Kind
    help: str
    default: Any = msgspec.UNSET  # and so is never left out
    minimum: float | int | None = None
    maximum: float | int | None = None
    choices: tuple[str, ...] = ()


class About(Struct, frozen=True, kw_only=True):
    """Answer of /page/about.

    Attributes:
        client: name of the key's client, empty without keys; None if a key is needed and there was none that is known.
        thinks, calls_tools: whether the served model's answers have thoughts and calls of tools.
    """

    version: str = __version__
    model: str
    needs_key: bool
    client: str | None
    may_read_status: bool
    is_admin: bool
    thinks: bool
    calls_tools: bool
    parameters: Sequence[Parameter]


def parameters(tokenizer: Tokenizer, style: ChatStyle) -> list[Parameter]:
    """What a chat with the served model may be asked for, with the model's own defaults."""
    recommended = msgspec.structs.asdict(tokenizer.sampling_defaults)
    absent = (() if style.thinks else _OF_THOUGHT) + (() if style.calls != "none" else _OF_TOOLS)
    return [_parameter(name, kind, text, recommended) for name, kind, text in _OFFERED if name not in absent]


def _parameter(name: str, kind: Kind, text: str, recommended: dict[str, Any]) -> Parameter:
    field = ChatRequest.model_fields[name]
    minimum: Any = None
    maximum: Any = None
    for limit in _limits(field):
        match limit:
            case Ge(ge=low) | Gt(gt=low):
                minimum = low
            case Le(le=high) | Lt(lt=high):
                maximum = high
            case _:
                pass
    default = field.get_default(call_default_factory=True)
    choices = tuple(EFFORTS) if name == "reasoning_effort" else ()
    return Parameter(name, kind, text, recommended.get(name, default), minimum, maximum, choices)


def _limits(field: FieldInfo) -> Iterator[Any]:
    """What is said of a field's values, also where it may be None instead."""
    yield from field.metadata
    for part in get_args(field.annotation):
        for said in getattr(part, "__metadata__", ()):
            yield from said.metadata if isinstance(said, FieldInfo) else (said,)
