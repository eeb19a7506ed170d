"""What each kind of grammar allows, token by token."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.grammars.checker import check
from scheduler_svc.frontend.grammars.spec import GrammarSpec
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from tests.frontend.walks import is_allowed, matcher, walk
from tests.support.effort import examples

MODEL = Tokenizer(DEMO_MODEL_DIR)
TOKENIZER = LLTokenizer(str(MODEL.folder / "tokenizer.json"), eos_token=list(MODEL.eos_token_ids))
SPECIAL = "<|im_start|>"
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["x", "tags"],
    "additionalProperties": False,
}


def spec(kind: str, content: object) -> GrammarSpec:
    return GrammarSpec(kind, content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))


def grammar(kind: str, content: object) -> str:
    checked = check(spec(kind, content), TOKENIZER)
    assert not checked.reason, checked.reason
    return checked.grammar


def refusal(kind: str, content: object) -> str:
    checked = check(spec(kind, content), TOKENIZER)
    assert not checked.grammar
    return checked.reason


def accepts(compiled: str, text: str) -> bool:
    """Whether an executor may generate exactly this text, each of its tokens allowed by the mask before it."""
    matcher = LLMatcher(TOKENIZER, compiled, log_level=0)
    [tokens] = MODEL.encode([text], add_special_tokens=False)
    for token in tokens:
        mask = matcher.compute_bitmask()
        if not mask[token // 8] >> token % 8 & 1:
            return False
        assert matcher.consume_token(token), matcher.get_error()
    return matcher.is_accepting()


@pytest.mark.parametrize(
    ("kind", "content", "right", "wrong"),
    [
        (
            "json",
            POINT,
            ['{"x":1,"tags":[]}', '{"x": -20, "tags": ["a", "é\\n🦊"]}', json.dumps({"x": 5, "tags": ["a"]}, indent=4)],
            [
                "",
                "{}",
                '{"x":1.5,"tags":[]}',
                '{"x":1,"tags":[1]}',
                '{"x":1,"tags":[],"y":2}',
                '{"tags":[],"x":1}',
                "[]",
            ],
        ),
        ("json", {"type": "object"}, ["{}", '{"a": [null, {"b": 1e5}]}'], ["[]", "null", '"a"', '{"a"}', "{} "]),
        ("json", {"enum": ["a", 1, None, {"b": []}]}, ['"a"', "1", "null", '{"b":[]}'], ["a", "2", '{"b":[1]}']),
        ("json", {"$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"}, ["null"], ["1"]),
        ("regex", r"[A-Z]{2}-\d+(/x)?", ["AB-1", "XY-123/x"], ["", "A-1", "AB-", "AB-1/", "AB-1x", "AB-1/x/x"]),
        ("regex", r"^é+$", ["é", "ééé"], ["", "e", "^é$"]),
        ("grammar", 'start: "a" b*\nb: /[0-9]/ | "(" b ")"', ["a", "a1", "a1((2))"], ["", "1", "a(", "a()"]),
        ("grammar", 'root ::= "a" b*\nb ::= [0-9] | "(" b ")"', ["a", "a1", "a1((2))"], ["", "1", "a(", "a()"]),
        ("choice", ["yes", "no", "yes, but"], ["yes", "no", "yes, but"], ["", "y", "yes,", "yesno", "yes no"]),
        (
            "structural_tag",
            {
                "structures": [
                    {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
                    {"begin": "<f=b>", "schema": POINT, "end": ""},
                ],
                "triggers": ["<g", "<f="],
            },
            ["", "text < f", 'one <f=a>5</f> two\n<f=b>{"x": 1, "tags": []} and <f=a>1</f>', "<f"],
            ["<f=", "<f=c>", "<f=a>x</f>", "<f=a>5", "<f=a>5</g>", "a <f=b>5", "<f=b>{}"],
        ),
    ],
    ids=["object", "any object", "enum", "ref", "regex", "anchored regex", "lark", "gbnf", "choice", "tags"],
)
def test_texts_that_match_and_others(kind: str, content: object, right: list[str], wrong: list[str]):
    compiled = grammar(kind, content)
    assert [text for text in right if not accepts(compiled, text)] == []
    assert [text for text in wrong if accepts(compiled, text)] == []


@pytest.mark.parametrize("where", ["trigger", "end"])
def test_special_tokens_in_tags(where: str):
    """They are no text: what stands for them is the token."""
    begin, end = (f"{SPECIAL}call:", "!") if where == "trigger" else ("call:", SPECIAL)
    structures = [{"begin": begin, "schema": {"type": "integer"}, "end": end}]
    triggers = [SPECIAL if where == "trigger" else "call"]
    compiled = grammar("structural_tag", {"structures": structures, "triggers": triggers})
    assert accepts(compiled, f"well {begin}5{end} so")
    assert accepts(compiled, "well")
    assert not accepts(compiled, f"{begin}x{end}")


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=examples(200))
@given(st.lists(ANY_TEXT, min_size=1, max_size=5), ANY_TEXT)
def test_choices_are_these_strings_and_no_others(choices: list[str], other: str):
    """Quotes, backslashes, newlines, control characters, the empty one. A special token's name as text is left out:
    a tokenizer reads it as the token."""
    compiled = grammar("choice", choices)
    assert [text for text in choices if not accepts(compiled, text)] == []
    assert accepts(compiled, other) == (other in choices)


@pytest.mark.parametrize(
    "choice", ['"', "\\", "\n", "\\n", "'", "/", "\x00", "\x7f", "\x85", "\u2028", "%json {}", "🦊", ""]
)
def test_choices_that_need_escapes(choice: str):
    compiled = grammar("choice", [choice, "else"])
    assert accepts(compiled, choice)
    assert not accepts(compiled, choice + "x")


@settings(max_examples=examples(100))
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-1000, 1000) | ANY_TEXT,
        lambda value: st.lists(value, max_size=3) | st.dictionaries(ANY_TEXT, value, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from([None, 1, 2, 4]),
)
def test_any_json_object_matches_however_it_is_written(value: object, indent: int | None):
    text = json.dumps({"value": value}, indent=indent, ensure_ascii=False)
    assert accepts(grammar("json", {"type": "object"}), text.replace("\x7f", "\\u007f"))


# --- whitespace ---


@pytest.mark.parametrize("kind", ["json", "structural_tag"])
def test_whitespace_ends(kind: str):
    """A model that draws whitespace has to go on with the text after a few."""
    tags = {"structures": [{"begin": "f:", "schema": POINT, "end": ""}], "triggers": ["f:"]}
    compiled = grammar(kind, POINT if kind == "json" else tags)
    before = "" if kind == "json" else "f:"
    for space in ["", " ", "\n", "\r\n\t\t", "\n" + " " * 32, " " * 32]:
        assert accepts(compiled, f'{before}{{{space}"x":{space}1,{space}"tags":[{space}]{space}}}'), repr(space)
    for space in ["\n\n", " " * 33, " \n"]:
        assert not accepts(compiled, f'{before}{{{space}"x":1,"tags":[]}}'), repr(space)


def test_a_schema_says_itself_which_whitespace_it_wants():
    compact = grammar("json", POINT | {"x-guidance": {"whitespace_flexible": False}})
    assert accepts(compact, '{"x":1,"tags":[]}')
    assert not accepts(compact, '{"x": 1,"tags":[]}')
    other = grammar("json", POINT | {"x-guidance": {"whitespace_pattern": " *"}})
    assert accepts(other, '{"x":' + " " * 100 + '1,"tags":[]}')
    assert not accepts(other, '{"x":\n1,"tags":[]}')
    lenient = grammar("json", POINT | {"unevaluatedItems": False, "x-guidance": {"lenient": True}})
    assert not accepts(lenient, '{"x":\n\n1,"tags":[]}'), "ours, with its other options"


# --- what is refused ---


@pytest.mark.parametrize(
    ("kind", "content", "reason"),
    [
        ("json", {"type": "bogus"}, "Invalid type: bogus"),
        ("json", {"not": {"type": "null"}}, 'Unimplemented keys: ["not"]'),
        ("json", {"type": "object", "x-guidance": 5}, "expected struct JsonCompileOptions"),
        ("json", {"type": "object", "x-guidance": {"other": 5}}, "unknown field `other`"),
        ("json", {"$ref": "http://example.com/schema"}, "http://example.com/schema' is not present"),
        ("json", {"$ref": "file:///etc/passwd"}, "does not fetch"),
        ("json", {"items": {"$ref": "other.json"}}, "does not fetch"),
        ("json", {"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ("json", {"type": "integer", "minimum": 2, "maximum": 1}, "Unsatisfiable schema"),
        ("json", {"enum": []}, "Unsatisfiable schema"),
        ("json", {"$ref": "#"}, "a text of # never ends"),
        ("regex", "(", "unclosed group"),
        ("regex", r"[^\s\S]", "it matches no text"),
        ("grammar", "start: other", 'unknown name: "other"'),
        ("grammar", "begin: /x/", "Expected ::= at line 1"),
        ("grammar", "start: start", "it matches no text"),
        ("grammar", "start: <|other|>", "unknown special token"),
        ("grammar", 'start: %json {"$ref": "http://example.com"}', "does not fetch"),
        ("grammar", "root ::= other", "Rule 'other' not found"),
        ("grammar", "root ::= " + "(" * 5000, "it cannot be read"),
        ("grammar", "", "rule found"),
        ("choice", ["\x01" * 50_000], "characters, the limit is 262144"),
    ],
)
def test_what_is_refused_and_why(kind: str, content: object, reason: str):
    assert reason in refusal(kind, content)


def test_what_is_too_much_for_a_lexer():
    rules = "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(30))
    assert "too big" in refusal("grammar", f'start: R0\n{rules}\nR30: "a"')


def test_a_key_that_is_written_with_escapes_evades_no_schema():
    """Unless the schema has a control character, which llguidance cannot write without them."""
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    compiled = grammar("json", schema)
    assert accepts(compiled, '{"a": 1}')
    assert accepts(compiled, r'{"b": "line\nnext \"quoted\" \\"}')
    assert not accepts(compiled, r'{"\u0061": "x"}')
    with_a_pattern = grammar("json", schema | {"properties": {**schema["properties"], "b": {"pattern": "^\\u00e9$"}}})
    assert not accepts(with_a_pattern, r'{"\u0061": "x"}')
    assert accepts(grammar("json", {"type": "object"}), r'{"a": "\u0007"}')
    assert accepts(grammar("json", {"const": "a\x07b"}), r'"a\u0007b"')


STRING = {"type": "string"}


def with_properties(count: int, required: int = 0, prefix: str = "key") -> dict[str, object]:
    names = [f"{prefix}{i}" for i in range(count)]
    return {
        "type": "object",
        "properties": dict.fromkeys(names, STRING),
        "required": names[:required],
        "additionalProperties": False,
    }


def nested(depth: int) -> dict[str, object]:
    inner = nested(depth - 1) if depth else STRING
    return with_properties(2, 1) | {"properties": {"key0": STRING, "key1": inner}}


@pytest.mark.parametrize(
    ("kind", "content", "text"),
    [
        ("json", with_properties(240), '{"key3":"a","key100":"b","key239":"c"}'),
        ("json", with_properties(500, 500), json.dumps({f"key{i}": "a" for i in range(500)})),
        ("json", nested(30), '{"key0":"a","key1":' * 31 + '"b"' + "}" * 31),
        ("json", {"anyOf": [with_properties(4) | {"title": str(i)} for i in range(50)]}, '{"key0":"a","key3":"b"}'),
        ("json", {"enum": [f"the word number {i}" for i in range(2000)]}, '"the word number 1999"'),
        ("choice", [f"the word number {i}" for i in range(2000)], "the word number 1999"),
    ],
    ids=["240 optional", "500 required", "30 deep", "any of 50", "enum", "choice"],
)
def test_what_is_large_and_may_be_meant_keeps_to_the_limits(kind: str, content: object, text: str):
    """Also in a mask after each of its tokens."""
    [tokens] = MODEL.encode([text], add_special_tokens=False)
    assert is_allowed(TOKENIZER, grammar(kind, content), tokens)


def test_what_would_take_ever_longer_passes_the_limits():
    compiled = grammar("grammar", 'start: e\ne: e e | e e e | /[a-z]/ | " "\n')
    [tokens] = MODEL.encode(["a" * 600], add_special_tokens=False)
    held = matcher(TOKENIZER, compiled)
    num_taken = sum(held.consume_token(token) for token in tokens)
    assert num_taken < len(tokens)
    assert "1000" in held.get_error()


# --- what the library would take for something else ---

ODD = 2**53 + 1  # the first integer that is no double


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"const": ODD}, "#/const"),
        ({"enum": ["a", 5, -ODD]}, "#/enum"),
        ({"const": 2**64}, "#/const"),
        ({"const": -(2**63)}, "#/const"),
        ({"const": 10**200}, "#/const"),
        ({"const": 1e19, "type": "integer"}, "#/const"),
        ({"enum": [-1e19], "type": "integer"}, "#/enum"),
        ({"const": {"ids": [1, ODD]}}, "#/const"),
        ({"properties": {"a": {"anyOf": [{"type": "null"}, {"const": ODD}]}}}, "#/properties/a/anyOf/1/const"),
        ({"items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"enum": [ODD]}}}, "#/$defs/n/enum"),
        ({"prefixItems": [{"additionalProperties": {"const": ODD}}]}, "#/prefixItems/0/additionalProperties/const"),
        ({"type": "integer", "minimum": 2**63}, "#/minimum"),
        ({"type": "integer", "exclusiveMaximum": -(10**30)}, "#/exclusiveMaximum"),
        ({"type": "integer", "minimum": 10**18}, "#/minimum"),
        ({"items": {"type": "number", "maximum": -(2**60)}}, "#/items/maximum"),
        (
            {"$ref": "#/components/schemas/N", "components": {"schemas": {"N": {"const": ODD}}}},
            "#/components/schemas/N/const",
        ),
    ],
)
def test_a_number_that_no_grammar_holds_is_refused_by_its_place(schema: dict[str, object], place: str):
    reason = refusal("json", schema)
    assert reason.startswith(f"{place} is "), reason
    tags = {"structures": [{"begin": "f:", "schema": schema, "end": ""}], "triggers": ["f:"]}
    assert refusal("structural_tag", tags) == reason


def test_names_and_values_that_look_like_such_a_number_are_served():
    assert accepts(grammar("json", {"properties": {"const": {"type": "integer"}}, "default": ODD}), "{}")
    assert accepts(grammar("json", {"const": {"minimum": "2"}, "examples": [ODD]}), '{"minimum":"2"}')
    for value in (2**53, 2**53 + 2, 10**18, -(10**18), True, 0.1, 1e-7):
        written = f"{value:.7f}" if value == 1e-7 else json.dumps(value)
        assert accepts(grammar("json", {"const": value}), written)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "value", [2**53 - 1, 2**53, ODD, ODD + 1, 2**60 + 77, 2**63 - 1024, 2**63 - 1, 2**63, 2**64 + 3]
)
@pytest.mark.parametrize("is_exclusive", [False, True])
def test_bounds_of_large_integers_let_nothing_through_that_they_exclude(sign: int, value: int, is_exclusive: bool):
    name = ("exclusiveM" if is_exclusive else "m") + ("aximum" if sign > 0 else "inimum")
    compiled = grammar("json", {"type": "integer", name: sign * value})
    assert accepts(compiled, "5")
    within = min(value - is_exclusive, 2**63 - 1024)
    assert accepts(compiled, str(sign * (within - 2**11)))
    for above in (0 if is_exclusive else 1, 1, 2, 3, 1000, 2000):
        assert not accepts(compiled, str(sign * (value + above)))


@pytest.mark.parametrize("bound", [2**60, -(2**60), 2**62 + 2**11, 10**18 + 128])
def test_bounds_of_large_numbers_are_read_as_the_library_writes_them(bound: int):
    """It knows them by their shortest digits, which may be greater."""
    name, sign = ("maximum", 1) if bound > 0 else ("minimum", -1)
    compiled = grammar("json", {"type": "number", name: bound})
    assert accepts(compiled, "5")
    for above in (1, 24, 100, 1000):
        assert not accepts(compiled, str(bound + sign * above))
    both = grammar("json", {"type": "number", "minimum": 10**18 + 128, "maximum": 2**62})
    assert not accepts(both, str(10**18 + 127))
    assert accepts(both, str(10**18 + 1000))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "minItems": 2},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["x"]},
        {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#"}},
        {"type": "object", "allOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["a"]}]},
    ],
)
def test_a_schema_whose_texts_never_end_is_refused(schema: dict[str, object]):
    assert "a text of # never ends" in refusal("json", schema)


ENDLESS = {
    "x": {"type": "array", "items": {"$ref": "#/$defs/y"}, "minItems": 1},
    "y": {"allOf": [{"$ref": "#/$defs/x"}]},
    "n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]},
}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"properties": {"a": {"$ref": "#/$defs/x"}, "b": {}}}, ['{"b":1}', "{}"], ['{"a":1}', '{"a":[[']),
        ({"properties": {"a": {"properties": {"b": {"$ref": "#/$defs/n"}}, "required": ["b"], "type": "object"}}},
         ["{}"], ['{"a":{']),
        ({"type": "array", "items": {"$ref": "#/$defs/n"}}, ["[]"], ["[{"]),
        ({"anyOf": [{"$ref": "#/$defs/y"}, {"type": "null"}]}, ["null"], ["[["]),
        ({"type": "object", "additionalProperties": {"$ref": "#/$defs/x"}}, ["{}"], ['{"a":[']),
    ],
)  # fmt: skip
def test_a_branch_that_never_ends_is_not_begun(schema: dict[str, object], right: list[str], wrong: list[str]):
    """Nothing needs it. Where something does, the error names it and no other."""
    compiled = grammar("json", schema | {"$defs": ENDLESS})
    assert [text for text in right if not accepts(compiled, text)] == []
    for text in wrong:
        [tokens] = MODEL.encode([text], add_special_tokens=False)
        assert LLMatcher(TOKENIZER, compiled, log_level=0).validate_tokens(tokens) < len(tokens)
    needed = {"type": "object", "properties": {"q": {"$ref": "#/$defs/n"}, "r": schema}, "required": ["q"]}
    assert "a text of #/$defs/n never ends" in refusal("json", needed | {"$defs": ENDLESS})


def test_a_pattern_of_keys_that_the_library_does_not_have_is_refused():
    schema = {"type": "object", "patternProperties": {"^(?!x)": {}}, "additionalProperties": False}
    assert "look-around" in refusal("json", schema)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", "properties": {"next": {"$ref": "#"}}}, '{"next":{"next":{}}}'),
        ({"type": ["object", "null"], "properties": {"n": {"$ref": "#"}}, "required": ["n"]}, '{"n":{"n":null}}'),
        ({"type": "array", "items": {"$ref": "#"}}, "[[],[[]]]"),
        ({"properties": {"n": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["n"]}, '{"n":{"n":null}}'),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "null"}}}, "null"),
    ],
)
def test_a_schema_that_refers_to_itself_may_end(schema: dict[str, object], text: str):
    assert accepts(grammar("json", schema), text)


INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (
            {
                "properties": {"id": INTEGER},
                "patternProperties": {"^id$": {"maximum": 5}},
                "additionalProperties": False,
            },
            ['{"id":5}', "{}"],
            ['{"id":6}', '{"id":"a"}'],
        ),
        (
            {
                "properties": {"a": INTEGER, "b": INTEGER},
                "patternProperties": {"^(a|b)$": {}},
                "additionalProperties": False,
            },
            ['{"a":1,"b":2}'],
            ['{"a":"x"}'],
        ),
        (
            {"properties": {"a": INTEGER}, "patternProperties": {"^(a|b)$": INTEGER}, "additionalProperties": False},
            ['{"a":1,"b":2}'],
            ['{"a":1,"c":2}'],
        ),
        ({"properties": {"a": INTEGER}, "patternProperties": {"^a$": {}}}, ['{"a":1,"c":"x"}'], ['{"a":"x"}']),
        ({"properties": {"a": INTEGER}, "patternProperties": {"^[^a]|^a(?s:.)+|^$": False}}, ['{"a":1}'], ['{"b":1}']),
        (
            {"properties": {"é\n": INTEGER}, "patternProperties": {"^é\n$": {}}, "additionalProperties": False},
            ['{"é\\n":1}'],
            ["[]"],
        ),
    ],
)
def test_a_pattern_of_keys_that_matches_named_ones_alone_leads_nowhere(
    schema: dict[str, object], right: list[str], wrong: list[str]
):
    """After a named property a text could go on with a key of the pattern, of which none is left."""
    for whole in (schema | {"type": "object"}, {"type": "array", "items": schema | {"type": "object"}}):
        is_nested = "items" in whole
        compiled = grammar("json", whole)
        for text in right:
            assert accepts(compiled, f"[{text}]" if is_nested else text)
        for text in wrong:
            assert not accepts(compiled, f"[{text}]" if is_nested else text)
        phrases = [MODEL.encode([text], add_special_tokens=False)[0] for text in ('{"', ',"', '":', "1", "}", "]", "{")]
        have_ended = [walk(TOKENIZER, compiled, phrases, seed)[1] for seed in range(12)]
        assert any(have_ended), "and none came to a place where no token is allowed"
