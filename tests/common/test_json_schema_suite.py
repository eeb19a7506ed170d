"""What llguidance makes of every schema of the JSON-Schema-Test-Suite (draft 2020-12): a grammar that lets exactly the
valid instances be written, or a refusal. What deviates stands in the tables, and a table that has too much fails, too.

These are by design, and no deviations here:

* Compact JSON is asked for (`whitespace_flexible`), as one spelling must do for the suite.
* Keys come in one order: that of `properties`, then that of `required`, then the others. A valid object has to match in
  some order of its keys; an invalid one may match in none.
* A number has one spelling in a grammar with bounds, `enum` or `const`: 1 for 1.0. Either counts.
* Keywords that are not supported are refused. They are never ignored.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.json_grammars import TOKENIZER, byte_tokens, json_grammar, matcher, refusal, spellings, takes

SUITE = Path(__file__).parent / "json_schema_suite" / "draft2020-12"
# Of schemas: how many are taken of how many there are. The optional part is formats and regexes for the most part.
TAKEN = {"required": (164, 368), "optional": (41, 70)}
UNSUPPORTED_KEYWORDS = {
    *("$dynamicAnchor", "$dynamicRef", "dependencies", "dependentRequired", "dependentSchemas", "not", "propertyNames"),
    *("if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
    *("unevaluatedItems", "unevaluatedProperties"),
}
UNSUPPORTED_FORMATS = {
    *("idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer"),
    *("uri-reference", "uri-template"),  # "unknown" is ignored, as the suite wants it
}
OTHER_REFUSALS = {
    r"Resource '.*' is not present in a registry": 25,  # a reference to another document, which nobody fetches
    r"Unsatisfiable schema: schema is false": 6,  # no document would match
    r"oneOf constraints are not supported": 8,  # unless at most one can match by the types or by a constant
    r"patternProperty regexes .* are not disjoint": 3,
    r"Expected positive integer for '(min|max)(Items|Length|Properties)', got \d.0": 6,
    r"Value for 'multipleOf' has too many digits": 1,
    r"Failed to generate regex for float range": 4,  # bounds beyond 64 bits
    r"regex parse error": 2,  # \cA, a control character in ECMA's way
}

# By file: the valid instances that no text is taken for. A document is never wrong for it.
VALID_REFUSED = {
    # A format is an assertion, as those who ask for one want it. The specification takes it for an annotation.
    "format": {
        f"invalid {name} string is only an annotation by default"
        for name in ("email", "ipv4", "ipv6", "hostname", "date", "date-time", "time", "uri", "uuid", "duration")
    },
    "optional/format/email": {
        "a quoted string with a space in the local part is valid",
        "a quoted string with a double dot in the local part is valid",
        "a quoted string with a @ in the local part is valid",
        "an IPv6-address-literal after the @ is valid",
    },
    "optional/format/ipv6": {
        "mixed format with the ipv4 section as decimal octets",
        "mixed format with double colons between the sections",
        "mixed format with leading double colons (ipv4-mapped ipv6 address)",
        "a long valid ipv6",
    },
    "optional/ecmascript-regex": {"zero-width whitespace matches"},  # U+FEFF is a space for ECMA, not for Unicode
    "optional/float-overflow": {"valid if optional overflow handling is implemented"},  # 1e308: no exponents here
}
# By file: the invalid instances that some text is taken for.
INVALID_TAKEN = {
    # A leap year and a leap second's hour are beyond a regular language of some size.
    "optional/format/date": {
        "a invalid date string with 29 days in February (normal)",
        "2021 is not a leap year",
    },
    "optional/format/date-time": {
        "an invalid date-time with leap second on a wrong minute, UTC",
        "an invalid date-time with leap second on a wrong hour, UTC",
    },
    "optional/format/time": {
        *(f"invalid leap second, {offset} (wrong hour)" for offset in ("Zulu", "zero time-offset")),
        *(f"invalid leap second, {offset} (wrong minute)" for offset in ("Zulu", "zero time-offset")),
        *(f"invalid leap second, {sign} time-offset (wrong hour)" for sign in ("positive", "negative")),
        *(f"invalid leap second, {sign} time-offset (wrong minute)" for sign in ("positive", "negative")),
        "an invalid time string with invalid leap second (wrong hour)",
        "an invalid time string with invalid leap second (wrong minute)",
    },
    "optional/ecmascript-regex": {"zero-width whitespace does not match"},
}

# Which escapes a string may have, and what that adds to the tables.
ESCAPES: dict[str, dict[str, Any]] = {
    r"with \u": {
        "options": {},
        "valid_refused": {},
        # A key that is not in `properties` and matches no pattern may be any string, and one with escapes for letters
        # is not seen to be the same key. So "\u0061" passes for another key than "a".
        "invalid_taken": {"optional/non-bmp-regex": {"doesn't match one", "doesn't match two"}},
    },
    r"without \u": {
        "options": {"json_allowed_escapes": 'nrbtf\\"'},
        # Most control characters cannot be written, and a constant's are left out.
        "valid_refused": {
            "const": {"match string with nul"},
            "enum": {"match string with nul"},
            "optional/ecmascript-regex": {"Line tabulation matches", "Non-whitespace control matches"},
        },
        "invalid_taken": {"const": {"do not match string lacking nul"}, "enum": {"do not match string lacking nul"}},
    },
}


@dataclass(frozen=True)
class Group:
    """A schema, and instances which are valid or are not."""

    file: str
    description: str
    schema: dict[str, Any]
    instances: list[dict[str, Any]]

    @property
    def part(self) -> str:
        return "optional" if self.file.startswith("optional/") else "required"


@cache
def groups() -> list[Group]:
    found = []
    for path in sorted(SUITE.rglob("*.json")):
        for group in json.loads(path.read_text()):
            schema = group["schema"] if isinstance(group["schema"], dict) else {"allOf": [group["schema"]]}
            file = path.relative_to(SUITE).with_suffix("").as_posix()
            found.append(Group(file, group["description"], schema, group["tests"]))
    return found


@cache
def refusals() -> dict[int, str]:
    """Why each group's schema is refused, by the group's number; empty if it is taken."""
    return {number: refusal(json_grammar(group.schema)) for number, group in enumerate(groups())}


def test_what_is_refused_is_what_is_known_to_be() -> None:
    keywords, formats, others = set[str](), set[str](), Counter[str]()
    taken = Counter[str]()
    for number, reason in refusals().items():
        group = groups()[number]
        if not reason:
            taken[group.part] += 1
        elif reason.startswith("Unimplemented keys: "):
            keywords.update(json.loads(reason.removeprefix("Unimplemented keys: ")))
        elif reason.startswith("Unknown format: "):
            formats.add(reason.removeprefix("Unknown format: "))
        else:
            others[next((each for each in OTHER_REFUSALS if re.match(each, reason)), reason)] += 1
            if reason.startswith("Unsatisfiable"):
                assert not any(instance["valid"] for instance in group.instances), group.description
    assert keywords == UNSUPPORTED_KEYWORDS
    assert formats == UNSUPPORTED_FORMATS
    assert others == OTHER_REFUSALS
    schemas = Counter(group.part for group in groups())
    assert {part: (taken[part], schemas[part]) for part in TAKEN} == TAKEN


@pytest.mark.parametrize("escapes", ESCAPES)
def test_valid_instances_match_and_invalid_ones_do_not(escapes: str) -> None:
    valid_refused: dict[str, set[str]] = {}
    invalid_taken: dict[str, set[str]] = {}
    for number, group in enumerate(groups()):
        if refusals()[number]:
            continue
        beginning = matcher(json_grammar(group.schema, **ESCAPES[escapes]["options"]))
        for instance in group.instances:
            matches = set[bool]()
            for text in spellings(instance["data"]):
                found = takes(beginning, TOKENIZER.tokenize_str(text))
                assert takes(beginning, byte_tokens(text)) == found, f"{text} matches in some tokens, not in others"
                matches.add(found)
            if (True in matches) != instance["valid"]:
                table = valid_refused if instance["valid"] else invalid_taken
                table.setdefault(group.file, set()).add(instance["description"])
    assert valid_refused == _joined(VALID_REFUSED, ESCAPES[escapes]["valid_refused"])
    assert invalid_taken == _joined(INVALID_TAKEN, ESCAPES[escapes]["invalid_taken"])


@pytest.mark.parametrize("escapes", ESCAPES)
def test_a_key_with_escapes_passes_for_another_key(escapes: str) -> None:
    """The suite has this for one pattern only. Schemas that allow no other keys than theirs are safe."""
    open_, closed = {"properties": {"a": {"type": "integer"}}}, {"additionalProperties": False}
    passes = []
    for schema in (open_, open_ | closed):
        beginning = matcher(json_grammar(schema, **ESCAPES[escapes]["options"]))
        assert takes(beginning, byte_tokens('{"a":1}'))
        assert not takes(beginning, byte_tokens('{"a":"x"}'))
        passes.append(takes(beginning, byte_tokens(r'{"\u0061":"x"}')))
    assert passes == [escapes == r"with \u", False]


def _joined(*tables: dict[str, set[str]]) -> dict[str, set[str]]:
    return {file: set().union(*(table.get(file, set()) for table in tables)) for table in tables for file in table}
