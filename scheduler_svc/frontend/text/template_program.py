"""`python -m scheduler_svc.frontend.text.template_program`: renders chats for a frontend, in a process of its own.

A template is a program that came with a model, whose author is not trusted, and clients write what it reads: two loops
keep it busy for as long as they like, and `'x' * 10**9` takes as much memory. A sandbox keeps it from our objects, and
this process from our time and memory.

It renders as transformers does (its `chat_template_utils` is the reference).
"""

import json
import secrets
import signal
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import jinja2
import jinja2.meta
import msgspec
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from common.errors import CheckpointError, RequestRejected
from scheduler_svc.frontend.helper_program import Answer, answer_questions

MAX_ADDRESS_SPACE = 384 * 2**20  # bytes; with a conversation of 8 MiB it had 90 MB
COMPILE_MAY_TAKE_S = 2  # of CPU: templates of models take some hundredths
MAX_RENDERED_BYTES = 16 * 2**20  # as JSON: twice the longest body, and four million tokens
MAX_REASON_CHARS = 2000  # templates quote what they refuse

# How a rendered conversation ends: ready for the assistant's answer; with its last message; in that message, which is
# the assistant's and to be continued.
Ending = Literal["answer", "message", "continued"]


class TemplateSettings(msgspec.Struct, frozen=True):
    """What the process has to know.

    Attributes:
        source: the template.
        special_tokens: `{"eos_token": "<|im_end|>", ...}`.
    """

    source: str
    special_tokens: dict[str, str]


class Compiled(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a template.

    Attributes:
        variables: names of all that it may be told.
        reason: why it cannot be compiled; empty if it can.
    """

    variables: list[str] = []
    reason: str = ""


class Rendered(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a conversation.

    Attributes:
        text: it, as the template writes it.
        reason: why it cannot be rendered; empty if it can.
    """

    text: str = ""
    reason: str = ""


class TemplateProgram:
    """One compiled template. Raises CheckpointError if it cannot be compiled.

    Attributes:
        variables: names of all that it may be told.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlocks]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            tree = environment.parse(source)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
            self._template = environment.from_string(tree)
        except jinja2.TemplateError as error:
            raise CheckpointError(f"the model's chat template cannot be compiled: {error}") from error
        except Exception as error:  # it becomes Python, which has limits of its own, and constants in it are computed
            reason = str(error) or "it takes too much memory"
            raise CheckpointError(f"the model's chat template cannot be compiled: {reason}") from error
        self._special_tokens = dict(special_tokens)

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


def prepare(settings_json: bytes) -> tuple[Answer, bytes]:
    """What answers questions, with the template compiled; why it cannot be compiled, if it cannot."""
    settings = msgspec.json.decode(settings_json, type=TemplateSettings)
    signal.setitimer(signal.ITIMER_PROF, COMPILE_MAY_TAKE_S)  # which ends the process: constants are computed, too
    try:
        program = TemplateProgram(settings.source, settings.special_tokens)
    except CheckpointError as error:
        return lambda question: question, msgspec.json.encode(Compiled(reason=str(error)))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    ready = msgspec.json.encode(Compiled(sorted(program.variables)))
    return lambda question: _answer(program, question), ready


def _answer(program: TemplateProgram, question: bytes) -> bytes:
    try:
        answer = msgspec.json.encode(Rendered(program.render(*json.loads(question))))
    except RequestRejected as rejected:
        answer = _refused(str(rejected))
    except UnicodeEncodeError as error:
        answer = _refused(f"a text is not valid Unicode: {error.reason}")
    except MemoryError:
        answer = _refused(
            f"the model's chat template takes more than {MAX_ADDRESS_SPACE // 2**20} MiB for this conversation"
        )
    if len(answer) <= MAX_RENDERED_BYTES:
        return answer
    limit = f"{MAX_RENDERED_BYTES // 2**20} MiB"
    return _refused(f"the model's chat template writes more than {limit} for this conversation")


def _refused(reason: str) -> bytes:
    return msgspec.json.encode(Rendered(reason=reason.encode(errors="replace").decode()[:MAX_REASON_CHARS]))


if __name__ == "__main__":
    answer_questions(prepare, address_space=MAX_ADDRESS_SPACE)
