"""What a request says of the texts that it allows, and what becomes of that."""

from typing import Literal

import msgspec

GrammarKind = Literal["json", "choice", "regex", "grammar", "structural_tag"]


class GrammarSpec(msgspec.Struct, frozen=True):
    """One way to say which texts are allowed.

    Attributes:
        text: of a "json" a schema, of a "choice" a list of strings, of a "structural_tag" an object with structures and
            triggers, all as JSON; of a "regex" the expression; of a "grammar" rules in Lark or GBNF.
    """

    kind: GrammarKind
    text: str


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
        tokenizer_file: path of the model's tokenizer.json.
        eos_token_ids: tokens that end the model's texts.
        parent: process that the checker ends with.
    """

    tokenizer_file: str
    eos_token_ids: list[int]
    parent: int
