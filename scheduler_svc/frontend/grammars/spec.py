"""What a request says of the texts that it allows, and what becomes of that."""

from typing import Any, Literal

import msgspec

from scheduler_svc.frontend.parsing.message import CallFormat, ThoughtStart

GrammarKind = Literal["json", "choice", "regex", "grammar", "structural_tag", "tools", "any"]


class GrammarSpec(msgspec.Struct, frozen=True):
    """One way to say which texts are allowed.

    Attributes:
        text: of a "json" a schema, of a "choice" a list of strings, of a "structural_tag" an object with structures and
            triggers, of "tools" a `ToolGrammar`, all as JSON; of a "regex" the expression; of a "grammar" rules in Lark
            or GBNF; of "any" nothing.
        thought: what comes before the text, as in `MessageRules`.
        thought_budget: tokens that a thought may have; then its end tag is forced. None for no limit.
    """

    kind: GrammarKind
    text: str
    thought: ThoughtStart = "none"
    thought_budget: int | None = None


class ToolSchema(msgspec.Struct, frozen=True):
    """A tool, as far as a grammar needs to know it.

    Attributes:
        parameters: JSON schema of its arguments, an object's; None if they may be any object.
    """

    name: str
    parameters: dict[str, Any] | None


class ToolGrammar(msgspec.Struct, frozen=True):
    """Which calls of tools a text may have, and has to have.

    Attributes:
        format: how calls are written.
        is_required: True: the text is one call or several, and nothing else. False: free text with calls in it.
        is_one_call: no second call.
        content: JSON schema of a text that may stand in place of required calls; None if none may.
    """

    format: CallFormat
    tools: list[ToolSchema]
    is_required: bool
    is_one_call: bool
    content: dict[str, Any] | None = None


class Checked(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a check gave.

    Attributes:
        grammar: in llguidance's own format, if it is accepted.
        reason: why it is refused; empty if it is not.
    """

    grammar: str = ""
    reason: str = ""


class CheckerSettings(msgspec.Struct, frozen=True):
    """What a checker has to know.

    Attributes:
        folder: of the model, with its tokenizer.json.
        eos_token_ids: tokens that end the model's texts.
    """

    folder: str
    eos_token_ids: list[int]
