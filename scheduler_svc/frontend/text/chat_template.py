"""A model's chat template, rendered as transformers renders it (its `chat_template_utils` is the reference)."""

import json
import secrets
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import jinja2
import jinja2.meta
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from common.errors import CheckpointError, RequestRejected

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
RESERVED_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt", *SPECIAL_TOKENS})

# How a rendered conversation ends: ready for the assistant's answer; with its last message; in that message, which is
# the assistant's and to be continued.
Ending = Literal["answer", "message", "continued"]


class ChatTemplate:
    """One compiled template, in a sandbox: it came with a model, whose author is not trusted.

    Attributes:
        source: the template.
        variables: names of all that it may be told.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlocks]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self.source = source
        try:
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(f"the model's chat template cannot be compiled: {error}") from error
        self._special_tokens = dict(special_tokens)

    @classmethod
    def of_model(cls, folder: Path, tokenizer_config: Mapping[str, Any]) -> "ChatTemplate | None":
        """The template in `chat_template.jinja` or else in tokenizer_config.json; None if there is none."""
        path = folder / "chat_template.jinja"
        source = path.read_text(encoding="utf-8") if path.is_file() else tokenizer_config.get("chat_template")
        if isinstance(source, list):  # several named templates, [{"name": "default", "template": "..."}, ...]
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        if source is None:
            return None
        if not isinstance(source, str):
            raise CheckpointError(f"chat_template in {folder}/tokenizer_config.json is a {type(source).__name__}")
        return cls(source, _special_tokens(tokenizer_config))

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
        ending: Ending = "answer",
    ) -> str:
        """The conversation as text. Raises RequestRejected if that fails."""
        if ending == "continued":
            return self._render_continued(messages, tools, variables)
        return self._render(messages, tools, variables, add_generation_prompt=ending == "answer")

    def _render_continued(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, variables: Mapping[str, Any]
    ) -> str:
        """What stands before the end of the last message's content, which a mark shows, as in transformers."""
        mark = f"<continued-{secrets.token_hex(8)}>"
        marked = {**messages[-1], "content": messages[-1]["content"] + mark}
        text = self._render([*messages[:-1], marked], tools, variables, add_generation_prompt=False)
        continued, found, _ = text.rpartition(mark)
        if not found:
            raise RequestRejected("the model's chat template leaves out the message that is to be continued")
        return continued

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
    ) -> str:
        known = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(**self._special_tokens, **variables, **known)
        except jinja2.TemplateError as error:
            raise RequestRejected(f"the model's chat template refuses this conversation: {error}") from error
        except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, RecursionError) as error:
            # A template is a program: a message that it does not expect can end in any of Python's errors.
            raise RequestRejected(f"the model's chat template cannot render this conversation: {error}") from error


class _GenerationBlocks(Extension):
    """`{% generation %}` marks the assistant's text for training; only its content matters here."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[Node]:
        """The statements inside the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """`{"eos_token": "<|im_end|>", ...}`; the file has each as a string or as an object with its content."""
    tokens: dict[str, str] = {}
    for name in SPECIAL_TOKENS:
        token = tokenizer_config.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            tokens[name] = token
    return tokens


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
