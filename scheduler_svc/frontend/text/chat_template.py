"""A model's chat template, and the process that renders chats with it. That blocks, so it is a thread's work."""

import json
import signal
import weakref
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from common.errors import CheckpointError, RequestRejected
from common.logging import get_logger
from common.model_reading import read_template
from scheduler_svc.frontend.helper_process import HelperEvents, HelperProcess, HelperUnavailable
from scheduler_svc.frontend.text.template_program import (
    COMPILE_MAY_TAKE_S,
    MAX_ADDRESS_SPACE,
    Compiled,
    Ending,
    Rendered,
    TemplateSettings,
)

log = get_logger(__name__)

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
RESERVED_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt", *SPECIAL_TOKENS})
MAX_SOURCE_CHARS = 2**18  # of a template; those of known models have up to 20,000
RENDER_MAY_TAKE_S = 1.0  # others wait for so long; 8 MiB in 4,096 messages took 0.4 s on two busy cores

_ANSWER = "to-be-found-again"
_MODULE = "scheduler_svc.frontend.text.template_program"
_EVENTS = HelperEvents(
    "chat template started",
    "chat template died",
    "chat template took too long",
    "chat template does not start",
)
_compiled = msgspec.json.Decoder(Compiled)
_rendered = msgspec.json.Decoder(Rendered)


class ChatTemplate:
    """One template, which a process renders: that is started when it is first needed, and again after it died.

    Args:
        special_tokens: by the names that templates have for them.
        file: that the user has named for it, in errors.
        render_may_take_s: or the process is killed.

    Attributes:
        source: the template.
        render_may_take_s: as given.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        file: Path | None = None,
        *,
        render_may_take_s: float = RENDER_MAY_TAKE_S,
    ) -> None:
        self.source, self._file = source, file
        self.render_may_take_s = render_may_take_s
        if len(source) > MAX_SOURCE_CHARS:
            raise self._error(f"the chat template has {len(source)} characters, the limit is {MAX_SOURCE_CHARS}")
        try:
            settings = msgspec.json.encode(TemplateSettings(source, dict(special_tokens)))
        except UnicodeEncodeError as error:
            raise self._error(f"the chat template is not valid Unicode: {error.reason}") from error
        self._process = HelperProcess(_EVENTS, _MODULE, settings)
        weakref.finalize(self, self._process.close)

    @classmethod
    def of_model(
        cls, folder: Path, tokenizer_config: Mapping[str, Any], chosen: Path | None = None
    ) -> "ChatTemplate | None":
        """The template in `chat_template.jinja` or else in tokenizer_config.json; None if there is none.

        Args:
            chosen: file with the template that takes their place.
        """
        if chosen is not None:
            source = read_template(chosen)
            if source is None:
                raise CheckpointError(f"there is no {chosen}")
            return cls(source, special_tokens_of(tokenizer_config), chosen)
        source = tokenizer_config.get("chat_template")
        if isinstance(source, list):  # several named templates, [{"name": "default", "template": "..."}, ...]
            named = [entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default"]
            source = named[-1].get("template") if named else None
        if (written := read_template(folder / "chat_template.jinja")) is not None:
            source = written
        if source is None:
            return None
        if not isinstance(source, str):
            raise CheckpointError(f"chat_template in {folder}/tokenizer_config.json is a {type(source).__name__}")
        return cls(source, special_tokens_of(tokenizer_config))

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names of all that it may be told. Starts the process. Raises CheckpointError if it cannot be compiled, and
        HelperUnavailable."""
        try:
            compiled = _compiled.decode(self._process.start())
        except HelperUnavailable as error:
            if error.status != -signal.SIGPROF:
                raise
            raise self._error(f"compiling the chat template takes more than {COMPILE_MAY_TAKE_S} s") from error
        if compiled.reason:
            raise self._error(compiled.reason)
        return frozenset(compiled.variables)

    def _error(self, reason: str) -> CheckpointError:
        return CheckpointError(reason if self._file is None else f"{self._file}: {reason}")

    def after_answer(self) -> str:
        """Return what it writes directly after an assistant's content; empty if it renders none after a question."""
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
        try:
            _, found, after = self.render(messages, None, {}, "message").rpartition(_ANSWER)
        except RequestRejected as error:
            log.warning("chat template does not show where answers end", error=str(error))
            return ""
        return after if found else ""

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
        ending: Ending = "answer",
    ) -> str:
        """The conversation as text. Raises RequestRejected if that fails, takes too long, or too much memory."""
        # Not msgspec, which has neither half characters nor integers of any length, as requests may.
        question = json.dumps([messages, tools, dict(variables), ending], ensure_ascii=False)
        try:
            answer = self._process.ask(question.encode("utf-8", "surrogatepass"), self.render_may_take_s)
        except TimeoutError:
            reason = f"takes more than {self.render_may_take_s:g} s for this conversation"
            raise RequestRejected(f"the model's chat template {reason}") from None
        except HelperUnavailable as error:
            message = "chats cannot be rendered now; the server's log says more"
            raise RequestRejected(message, "unavailable") from error
        if answer is None:
            reason = f"fails on this conversation, or takes more than {MAX_ADDRESS_SPACE // 2**20} MiB for it"
            raise RequestRejected(f"the model's chat template {reason}")
        rendered = _rendered.decode(answer)
        if rendered.reason:
            raise RequestRejected(rendered.reason)
        return rendered.text


def special_tokens_of(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """`{"eos_token": "<|im_end|>", ...}`; the file has each as a string or as an object with its content."""
    tokens: dict[str, str] = {}
    for name in SPECIAL_TOKENS:
        token = tokenizer_config.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            tokens[name] = token
    return tokens
