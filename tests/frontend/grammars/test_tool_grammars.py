"""Grammars of calls and of thoughts: what they let through, and that the parser of messages takes just that apart."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLTokenizer

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.grammars.checker import check
from scheduler_svc.frontend.grammars.spec import GrammarSpec, ToolGrammar, ToolSchema
from tests.frontend.messages import Message, parsed, rules_of
from tests.frontend.walks import goes_on_alike, is_allowed, walk
from tests.support.effort import examples
from tests.support.instructions import instructions_of
from tests.support.json_schemas import TREE, schemas
from tests.support.json_schemas import errors as schema_errors

FORMATS = ["hermes", "qwen3_coder", "json"]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["c", "f"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CODE = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "minLength": 3, "maxLength": 20},
        "where": {"type": "object", "properties": {"x": {"type": ["string", "null"]}}, "required": ["x"]},
    },
    "required": ["code"],
}
TOOLS = [ToolSchema("weather", WEATHER), ToolSchema("we", CODE), ToolSchema("anything", None)]


class Model:
    """A tokenizer. It has the tags of thoughts and calls as text, or as tokens of their own."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.library = LLTokenizer(str(folder / "tokenizer.json"), eos_token=[self.tokenizer.token_to_id("<|im_end|>")])

    def tokens(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=False)

    def may_write(self, grammar: str, text: str) -> bool:
        return is_allowed(self.library, grammar, self.tokens(text))


DEMO = Model(DEMO_MODEL_DIR)


@pytest.fixture(scope="module", params=["text", "tokens"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    if request.param == "text":
        return DEMO
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO_MODEL_DIR / "tokenizer.json"))
    tokenizer.add_tokens([tokenizers.AddedToken(tag, normalized=False) for tag in TAGS])
    tokenizer.save(str(folder / "tokenizer.json"))
    return Model(folder)


def tools(
    calls: Any, *, is_required: bool = True, is_one_call: bool = False, of: list[ToolSchema] = TOOLS, **thought: Any
) -> GrammarSpec:
    asked = ToolGrammar(calls, of, is_required, is_one_call)
    return GrammarSpec("tools", json.dumps(msgspec.to_builtins(asked)), **thought)


def grammar(spec: GrammarSpec, model: Model) -> str:
    checked = check(spec, model.library)
    assert not checked.reason, checked.reason
    return checked.grammar


def message(text: str, calls: Any, thought: Any = "none") -> Message:
    rules = rules_of({tool.name: tool.parameters for tool in TOOLS}, thought, calls)
    whole = parsed(rules, [text])
    assert parsed(rules, text) == whole
    return whole


def errors(calls: list[tuple[str, str]]) -> list[str]:
    """What is wrong with these calls."""
    schemas = {tool.name: tool.parameters or {"type": "object"} for tool in TOOLS}
    return [
        f"{name} {arguments}: {error.message}"
        for name, arguments in calls
        for error in Draft202012Validator(schemas[name]).iter_errors(json.loads(arguments))
    ]


def one_call(calls: str, name: str, value: str) -> str:
    """A call of the tool `f` with one parameter, which has a value of JSON."""
    if calls == "qwen3_coder":
        return f"<tool_call>\n<function=f>\n<parameter={name}>\n{value}\n</parameter>\n</function>\n</tool_call>"
    written = f'{{"name": "f", "arguments": {{"{name}": {value}}}}}'
    return written if calls == "json" else f"<tool_call>\n{written}\n</tool_call>"


# --- calls ---

OF_WEATHER = '{"city": "Köln", "days": 2}'
PARAMETERS = "<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
RIGHT = {
    "hermes": [
        f'<tool_call>\n{{"name": "weather", "arguments": {OF_WEATHER}}}\n</tool_call>',
        '<tool_call>\n{"name": "anything", "arguments": {}}\n</tool_call>',
    ],
    "qwen3_coder": [
        f"<tool_call>\n<function=weather>\n{PARAMETERS}</function>\n</tool_call>",
        f"<tool_call>\n<function=weather>\n{PARAMETERS}<parameter=unit>\nc\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=we>\n<parameter=code>\n\n</a>\n\n</parameter>\n</function>\n</tool_call>",
        '<tool_call>\n<function=anything>\n<parameter=x>\n{"y\n</parameter>\n</function>\n</tool_call>',
        "<tool_call>\n<function=anything>\n</function>\n</tool_call>",
    ],
    "json": [f'{{"name": "weather", "parameters": {OF_WEATHER}}}', '{"name": "anything", "arguments": {"a":1}}'],
}
WRONG = {
    "hermes": [
        '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "anything", "arguments": []}\n</tool_call>',
        '<tool_call>\n{"name": "anything", "arguments": {}}',
        "text",
        "",
    ],
    "qwen3_coder": [
        f"<tool_call>\n<function=weather>\n{PARAMETERS}<parameter=unit>\nk\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nx\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=we>\n<parameter=code>\nxx\n</parameter>\n</function>\n</tool_call>",
        f"<tool_call>\n<function=weather>\n{PARAMETERS}</function>\n",
        "text",
        "",
    ],
    "json": ['{"name": "weather", "parameters": {}}', '{"name": "x", "parameters": {}}', "text", "", "[]"],
}


PHRASES = [
    *(
        "\n</parameter>",
        "</function>",
        "\n</tool_call>",
        "\n<parameter=x>",
        "</think>",
        '"',
        "}",
        "]",
        "we",
        "any",
        "x",
    ),
    *("</", '": ', "5"),
]


@pytest.mark.parametrize("calls", FORMATS)
def test_required_calls(calls: str, model: Model):
    compiled = grammar(tools(calls), model)
    assert [text for text in RIGHT[calls] if not model.may_write(compiled, text)] == []
    assert [text for text in WRONG[calls] if model.may_write(compiled, text)] == []
    several = f"[{', '.join(RIGHT['json'])}]" if calls == "json" else "\n".join(RIGHT[calls])
    assert model.may_write(compiled, several)
    assert not model.may_write(grammar(tools(calls, is_one_call=True), model), several)
    assert not model.may_write(compiled, f"So: {several}")


@pytest.mark.parametrize("calls", FORMATS)
def test_calls_in_free_text(calls: str, model: Model):
    """Everything but the beginning of a call is text, and what begins as a call is one."""
    compiled = grammar(tools(calls, is_required=False), model)
    one = grammar(tools(calls, is_required=False, is_one_call=True), model)
    for text in ["", "Yes.\n", "a < b, <tool>", " \n[x" if calls != "json" else "x [", RIGHT[calls][0]]:
        assert model.may_write(compiled, text), text
        assert model.may_write(one, text), text
    for text in WRONG[calls]:
        assert model.may_write(compiled, text) == (text in ("", "text")), text
    if calls == "json":
        return
    texts = f"Well, {RIGHT[calls][0]}\n{RIGHT[calls][1]} so."
    assert model.may_write(compiled, texts)
    assert not model.may_write(one, texts)
    assert model.may_write(compiled, f"Well, {RIGHT[calls][0]} so.")
    assert not model.may_write(one, f"Well, {RIGHT[calls][0]} so."), "behind its only call an answer ends"
    assert not model.may_write(compiled, f"Well, {WRONG[calls][0]}")


@pytest.mark.parametrize("calls", FORMATS)
def test_free_text_does_not_begin_as_a_thought(calls: str, model: Model):
    """Where a thought may come, the parser would take it for one, also if the tag's letters are not its token."""
    letters = DEMO.tokens("\n<think>")
    for begin in [letters, letters[1:]]:
        for rest in ["", RIGHT["hermes"][0]]:
            tokens = [*begin, *model.tokens(rest)]
            compiled = grammar(tools(calls, is_required=False, thought="may_open"), model)
            assert not is_allowed(model.library, compiled, tokens)
        compiled = grammar(tools(calls, is_required=False), model)
        assert is_allowed(model.library, compiled, begin)


@pytest.mark.parametrize("calls", FORMATS)
@pytest.mark.parametrize("is_required", [True, False])
@pytest.mark.parametrize("thought", ["none", "may_open"])
def test_what_a_model_writes_at_random_is_calls(calls: str, is_required: bool, thought: str, model: Model):
    """With arguments that follow the schemas; if calls are required, there is nothing else."""
    compiled = grammar(tools(calls, is_required=is_required, thought=thought), model)
    phrases = [model.tokens(phrase) for phrase in PHRASES]
    begin = "" if is_required else "{" if calls == "json" else "Well <tool_call>"
    num_calls = 0
    for seed in range(14):
        tokens, is_whole = walk(model.library, compiled, phrases, seed, model.tokens(begin))
        text = model.text(tokens)
        thoughts, content, made = message(text, calls, thought)
        if not is_whole:
            continue
        assert errors(made) == [], text
        assert made or not is_required
        assert content == "" or not is_required
        assert "<tool_call>" not in content
        assert "</think>" not in thoughts
        num_calls += len(made)
    assert num_calls >= 2, "texts that say nothing"


def test_names_that_a_format_cannot_write(model: Model):
    for calls, name in [("qwen3_coder", "a>b"), ("qwen3_coder", "a\nb"), ("qwen3_coder", ""), ("hermes", ""),
                        ("json", "x" * 300)]:  # fmt: skip
        assert "name of tool" in check(tools(calls, of=[ToolSchema(name, None)]), model.library).reason
    assert model.may_write(
        grammar(tools("hermes", of=[ToolSchema('q"ü\n', None)]), model),
        '<tool_call>\n{"name": "q\\"ü\\n", "arguments": {}}\n</tool_call>',
    )


@pytest.mark.parametrize(
    ("calls", "parameters", "reason"),
    [
        ("hermes", {"type": "string"}, "are no object: their type is 'string'"),
        ("json", {"not": {"type": "null"}}, "Unimplemented keys"),
        ("qwen3_coder", {"anyOf": [{"type": "object"}]}, "cannot follow 'anyOf'"),
        ("qwen3_coder", {"properties": {"a": {"type": "string", "format": "uuid"}}}, "cannot follow 'format'"),
        (
            "qwen3_coder",
            {"properties": {"a": {"oneOf": [{"type": "string"}, {"const": "x"}]}}},
            "cannot follow 'oneOf'",
        ),
        ("qwen3_coder", {"properties": {"a>": {}}}, "name of parameter 'a>'"),
        ("qwen3_coder", {"properties": {"a": False}, "required": ["a"]}, "no schema that a parameter can follow"),
        ("qwen3_coder", {"properties": {"a": {"enum": ["</parameter>"]}}}, "no text in this format can be one of"),
        ("qwen3_coder", {"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}, "look-around"),
    ],
)
def test_schemas_that_are_refused(calls: str, parameters: dict[str, Any], reason: str, model: Model):
    assert reason in check(tools(calls, of=[ToolSchema("f", parameters)]), model.library).reason


# What clients send that `auto` takes: as zod, pydantic and MCP servers write it, and what is no schema.
ODD_VALUES: dict[str, list[Any]] = {
    "pattern": [r"^(?!\.)(?!.*\.\.)\w+@\w+$", r"^(a)\1$", r"\bx\b", "(", 5],
    "type": ["any", "String", None, [], ["string", "any"], 5],
    "enum": [None, [], "a", [2**53 + 1]],
    "const": [2**53 + 1, -(2**63)],
    "$ref": ["#/$defs/gone", "http://example.com/x", None, "gone"],
    "minimum": [None, "5", 10**30, 2**62, True],
    "multipleOf": [0, 2**40, "2", None],
    "minLength": [None, -1, "2", 1.0],
    "maxItems": [2**65],
    "$id": ["#x", "a b", None],
    "items": [None, "string", [{"type": "string"}, None]],
    "anyOf": [None, [], [None], {}],
    "oneOf": [None, [], [None], {}],
    "allOf": [None, [], [None], {}],
    "properties": [None, {"x": None}, {"x": "string"}],
    "required": [None, "x", [None]],
    "additionalProperties": [None, "string"],
    "patternProperties": [None, {"^(?!x)": {"type": "string"}}, {"^a": {}, "b$": {}}],
    "$schema": [{}, "http://example.com/none"],
    "format": [{}, None, "none"],
    "not": [{}],
    "if": [{}],
    "x-guidance": [{"none": 1}],
}
UNHELD: list[Any] = [{key: value} for key, values in ODD_VALUES.items() for value in values] + [None, "string"]


@pytest.mark.parametrize("calls", FORMATS)
@pytest.mark.parametrize("schema", UNHELD, ids=str)
def test_a_call_can_be_required_of_a_tool_that_is_not_strict_whatever_its_schema(calls: str, schema: Any):
    """What no grammar can hold is left out, and what stands beside it holds."""
    said = {"a": schema, "n": {"type": "integer"}}
    inner = {"type": "object", "properties": said, "required": ["n"]}
    parameters = {**inner, "properties": {**said, "deep": inner}, "x-guidance": {"lenient": True}}
    compiled = grammar(tools(calls, of=[ToolSchema("f", parameters)]), DEMO)
    text = one_call(calls, "n", "5")
    assert DEMO.may_write(compiled, text)
    assert not DEMO.may_write(compiled, text.replace("5", '"5"'))


@pytest.mark.parametrize("calls", FORMATS)
@pytest.mark.parametrize(
    "schema",
    [None, {"type": None}, {"properties": None}, {"required": None}, {"$schema": "x", "additionalProperties": None}],
)
def test_parameters_that_are_no_schema_are_any_object(calls: str, schema: dict[str, Any] | None):
    parameters = schema and {**schema, "x-guidance": {"lenient": True}}
    assert DEMO.may_write(grammar(tools(calls, of=[ToolSchema("anything", parameters)]), DEMO), RIGHT[calls][-1])


@pytest.mark.parametrize("calls", FORMATS)
@pytest.mark.parametrize("is_lenient", [False, True])
def test_a_refusal_names_the_tool(calls: str, is_lenient: bool):
    options: dict[str, Any] = {"x-guidance": {"lenient": True}} if is_lenient else {}
    for schema, reason in (
        ({"type": "integer", "minimum": 5, "maximum": 3}, "nsatisfiable"),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#/properties/a"}}, "never ends"),
        *([] if is_lenient else [({"const": 2**53 + 1}, "#/properties/a/const is 9007199254740993"),
                                 ({"const": 2**64}, "#/properties/a/const is 18446744073709551616"),
                                 ({"type": "any"}, "Invalid type: any")]),
    ):  # fmt: skip
        parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"], **options}
        asked = tools(calls, of=[*TOOLS, ToolSchema("f", parameters), ToolSchema("g", None)])
        said = check(asked, DEMO.library).reason
        assert said.startswith("tool 'f': "), said
        assert reason in said


def test_tools_that_are_none(model: Model):
    assert "there are no tools" in check(tools("hermes", of=[]), model.library).reason
    assert "not known" in check(tools("none"), model.library).reason


@pytest.mark.parametrize("calls", FORMATS)
def test_schemas_with_references(calls: str, model: Model):
    parameters = {"properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"], "$defs": {"n": {"type": "integer"}}}
    compiled = grammar(tools(calls, of=[ToolSchema("f", parameters)]), model)
    text = one_call(calls, "a", "5")
    assert model.may_write(compiled, text)
    assert not model.may_write(compiled, text.replace("5", '"5"'))


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "pattern": "^[a-c]/+$"}, ["a/", "b//"], ["a", "xa/", "a/x"]),
        ({"type": "string", "pattern": "b+"}, ["b", "abc\nd"], ["a"]),
        ({"type": "string", "maxLength": 2}, ["", "ab"], ["abc"]),
        ({"const": "x y"}, ["x y"], ["x"]),
        ({"type": "string", "pattern": "^a|b$"}, ["ac", "cb"], ["c", "ca"]),
        ({"type": "string", "pattern": r"^$|^[^|/]+@|\|$"}, ["", "a@b", "x|"], ["a", "/@"]),
        ({"enum": ["a", "abc", "5"], "minLength": 2}, ["abc"], ["a", "5"]),
        ({"enum": ["a", "b"], "const": "b", "type": "string"}, ["b"], ["a"]),
        ({"type": ["string", "null"]}, ["", "null", "a\n"], []),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["x", "null", "1.10", '"x"'], []),
        ({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}, ["x", "null"], ["nul1", '"abc"']),
        ({"oneOf": [{"enum": ["a", "null"]}, {"type": "null"}]}, ["a", "null"], ["b"]),
        ({"allOf": [{"type": "string"}, {"maxLength": 3}], "minLength": 2}, ["ab", "1.5"], ["a", "null"]),
        ({"$ref": "#/$defs/name"}, ["abc", "null"], ["abcd", "ab"]),
        (
            {"type": "string"},
            ["</function> so", "a <parameter=b>", "</function>"],
            ["</function>\n</tool_call>", "x</function></function>", "\n<parameter=b>", "<parameter=b> x"],
        ),
        ({}, ["x <function=f>", "[1", "5"], ["5</function>", '{"a": "</function>"}', "\n<parameter=b>"]),
        ({"type": ["integer", "string"]}, ["5", '"</parameter>"'], ["x"]),
    ],
)
def test_values_of_qwen3_coder(schema: dict[str, Any], right: list[str], wrong: list[str], model: Model):
    """A text is written as it is, other values as JSON."""
    name = {"type": ["string", "null"], "pattern": "^[a-c]+$", "minLength": 3, "maxLength": 3}
    parameters = {"properties": {"a": schema}, "required": ["a"], "$defs": {"name": name}}
    compiled = grammar(tools("qwen3_coder", of=[ToolSchema("f", parameters)]), model)
    call = partial(one_call, "qwen3_coder", "a")

    assert [value for value in right if not model.may_write(compiled, call(value))] == []
    assert [value for value in wrong if model.may_write(compiled, call(value))] == []
    rules = rules_of({"f": parameters})
    for value in right:
        [(_, arguments)] = parsed(rules, [call(value)]).calls
        assert not list(Draft202012Validator(parameters).iter_errors(json.loads(arguments)))


NOTHING = [
    {"type": "string", "pattern": "[0-9]", "maxLength": 0},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"allOf": [{"enum": ["a"]}, {"type": "string", "pattern": "^b$"}]},
]


@pytest.mark.parametrize("schema", NOTHING)
def test_a_text_that_cannot_be_is_seen_before_it_is_begun(schema: dict[str, Any]):
    asked = tools("qwen3_coder", of=[ToolSchema("f", {"properties": {"a": schema}})])
    assert "no text can follow" in check(asked, DEMO.library).reason


def test_references_of_parameters_lead_anywhere_in_the_schema():
    """zod writes one to the property that had the schema first, and what is made of OpenAPI to its components."""
    point = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    parameters = {
        "type": "object",
        "properties": {
            "a": point,
            "b": {"$ref": "#/properties/a"},
            "c": {"$ref": "#/components/schemas/list%20of"},
            "d": {"$ref": "#"},
            "e": {"$ref": "Named"},
        },
        "components": {"schemas": {"list of": {"type": "array", "items": {"$ref": "#/properties/b"}}}},
        "$defs": {"Named": {"$id": "Named", "type": "array", "items": {"$ref": "Named"}}},
    }
    compiled = grammar(tools("qwen3_coder", of=[ToolSchema("f", parameters)]), DEMO)
    for name, right, wrong in [
        ("b", '{"x": 1}', '{"x": "a"}'),
        ("c", '[{"x": 1}]', "[5]"),
        ("d", '{"a": {"x": 1}, "d": {"b": {"x": 2}}}', '{"a": 5}'),
        ("e", "[[], [[]]]", "[5]"),
    ]:
        assert DEMO.may_write(compiled, one_call("qwen3_coder", name, right)), name
        assert not DEMO.may_write(compiled, one_call("qwen3_coder", name, wrong)), name


def test_a_parameter_that_may_not_be_is_not_written():
    parameters = {"properties": {"a": False, "b": {"$ref": "#/$defs/n"}, "c": {"type": "integer"}},
                  "$defs": {"n": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/n"}}}}  # fmt: skip
    compiled = grammar(tools("qwen3_coder", of=[ToolSchema("f", parameters)]), DEMO)
    assert DEMO.may_write(compiled, "<tool_call>\n<function=f>\n</function>\n</tool_call>")
    assert not DEMO.may_write(compiled, "<tool_call>\n<function=f>\n<parameter=b>\n[[[")


@pytest.mark.parametrize("key", ["allOf", "anyOf"])
def test_references_that_fan_out_are_followed_once(key: str):
    defs: dict[str, Any] = {f"d{n}": {key: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    defs["d40"] = {"type": "string", "maxLength": 3}
    parameters = {"properties": {"a": {"$ref": "#/$defs/d0"}}, "required": ["a"], "$defs": defs}
    compiled = grammar(tools("qwen3_coder", of=[ToolSchema("f", parameters)]), DEMO)
    assert DEMO.may_write(compiled, one_call("qwen3_coder", "a", "abc"))
    assert not DEMO.may_write(compiled, one_call("qwen3_coder", "a", "abcd"))


@pytest.mark.parametrize("calls", FORMATS)
def test_effort_grows_with_the_number_of_parameters(calls: str):
    def effort(num_parameters: int) -> int:
        named = {f"p{i}": {"$ref": "#/$defs/a"} if i % 2 else {"type": "integer"} for i in range(num_parameters)}
        parameters = {"properties": named, "additionalProperties": False, "$defs": {"a": {"items": {"type": "null"}}}}
        asked = tools(calls, of=[ToolSchema("f", parameters)])
        return instructions_of(lambda: grammar(asked, DEMO))

    assert effort(400) < 6 * effort(100)


@pytest.mark.parametrize("calls", FORMATS)
def test_what_is_left_out_forbids_nothing(calls: str):
    """Without its pattern a key would be one of the other keys, which are not allowed."""
    parameters = {"type": "object", "properties": {"m": {"type": "object", "patternProperties": {"^(?!x)": {}},
                  "additionalProperties": False}}, "x-guidance": {"lenient": True}}  # fmt: skip
    compiled = grammar(tools(calls, of=[ToolSchema("f", parameters)]), DEMO)
    text = one_call(calls, "m", '{"a": 1}')
    assert DEMO.may_write(compiled, text)


@pytest.mark.parametrize("calls", FORMATS)
def test_schemas_made_of_openapi_are_held_as_far_as_they_can(calls: str):
    node = {"type": "object", "properties": {"n": {"$ref": "#/components/schemas/Node", "nullable": True},
            "any": {"type": "any"}, "i": {"type": "integer"}}}  # fmt: skip
    parameters = {"type": "object", "properties": {"a": {"$ref": "#/components/schemas/Node"}}, "required": ["a"],
                  "components": {"schemas": {"Node": node}}, "x-guidance": {"lenient": True}}  # fmt: skip
    compiled = grammar(tools(calls, of=[ToolSchema("f", parameters)]), DEMO)
    text = one_call(calls, "a", '{"n": {"i": 1}}')
    assert DEMO.may_write(compiled, text)
    assert not DEMO.may_write(compiled, text.replace("1", '"1"'))


def test_parameters_that_no_property_names(model: Model):
    """Their values are JSON: the parser does not know that they are texts."""
    parameters = {"additionalProperties": {"type": "string"}, "required": ["b"]}
    compiled = grammar(tools("qwen3_coder", of=[ToolSchema("f", parameters)]), model)
    call = "<tool_call>\n<function=f>\n<parameter=b>\n{}\n</parameter>\n</function>\n</tool_call>"
    assert model.may_write(compiled, call.format('"5"'))
    assert not model.may_write(compiled, call.format("5"))
    assert not model.may_write(compiled, call.format('"5"').replace("=b", "=c"))


@pytest.mark.parametrize("calls", FORMATS)
def test_a_refusal_shows_nothing_of_our_grammar(calls: str):
    parameters = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}, "required": ["a"]}
    reason = check(tools(calls, of=[ToolSchema("f", parameters)]), DEMO.library).reason
    assert "not" in reason
    assert "\n" not in reason
    assert "%json" not in reason
    assert not reason.startswith("at ")


@settings(max_examples=examples(80))
@given(
    st.dictionaries(st.sampled_from(["a", "b", "key"]), schemas(), max_size=2),
    st.sampled_from(FORMATS),
    st.integers(0, 99),
)
def test_arguments_follow_random_schemas(properties: dict[str, Any], calls: str, seed: int):
    """Those that are refused are left out."""
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": [*properties][:1]}
    if any("#/$defs/tree" in str(schema) for schema in properties.values()):
        parameters["$defs"] = {"tree": TREE}
    tool = ToolSchema("f", parameters)
    checked = check(tools(calls, is_one_call=True, of=[tool]), DEMO.library)
    assume(not checked.reason)
    phrases = [DEMO.tokens(phrase) for phrase in PHRASES]
    tokens, is_whole = walk(DEMO.library, checked.grammar, phrases, seed)
    rules = rules_of({"f": parameters}, calls=calls)
    _, content, made = parsed(rules, [DEMO.text(tokens)])
    if is_whole:
        [(_, arguments)] = made
        assert content == ""
        assert schema_errors(parameters, arguments) == []


def test_lenient_schemas_are_followed_as_far_as_a_format_can(model: Model):
    text = {"type": "string", "format": "x", "pattern": "^[a-c]$"}
    other = {"type": "string", "pattern": "(^a$)"}
    parameters = {"anyOf": [{}], "properties": {"a": text, "b": other}, "required": ["a", "b"],
                  "x-guidance": {"lenient": True}}  # fmt: skip
    compiled = grammar(tools("qwen3_coder", of=[ToolSchema("f", parameters)]), model)
    call = (
        "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n<parameter=b>\nz\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    assert model.may_write(compiled, call.format("b"))
    assert not model.may_write(compiled, call.format("d"))


# --- thoughts ---

POINT = json.dumps({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})
KINDS = {
    "json": (POINT, '{"x": 1}', "x"),
    "choice": ('["yes", "no"]', "yes", "maybe"),
    "regex": ("[a-c]+", "abc", "d"),
    "grammar": ('start: "a" b*\nb: "(" b ")" | "x"', "a((x))", "b"),
    "structural_tag": (
        json.dumps(
            {"structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}], "triggers": ["<f"]}
        ),
        "so <f>5</f>",
        "<f>x</f>",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_grammar_begins_behind_the_thought(kind: Any, model: Model):
    content, right, wrong = KINDS[kind]
    opened = grammar(GrammarSpec(kind, content, "open"), model)
    for gap in ["", "\n", "\n\n"]:
        assert model.may_write(opened, f"any {wrong} <b>\n</think>{gap}{right}"), gap
        assert not model.may_write(opened, f"any {right}\n</think>{gap}{wrong}")
    assert model.may_write(opened, f"</think>{right}")
    assert not model.may_write(opened, right) or kind == "structural_tag"
    may_open = grammar(GrammarSpec(kind, content, "may_open"), model)
    assert model.may_write(may_open, right)
    assert model.may_write(may_open, f"<think>\nhm\n</think>\n\n{right}")
    assert not model.may_write(may_open, f"<think>\nhm\n</think>\n\n{wrong}")
    assert not model.may_write(may_open, wrong)


@pytest.mark.parametrize("kind", ["any", "json", "tools"])
@pytest.mark.parametrize("budget", [0, 1, 6])
def test_a_thought_ends_with_its_budget(kind: Any, budget: int, model: Model):
    """The thought has so many tokens at most, and then its end tag comes, and the answer."""
    text = {"any": "", "json": POINT, "tools": tools("hermes").text}[kind]
    answer = {"any": "Yes. <tool_call>", "json": '{"x": 1}', "tools": RIGHT["hermes"][0]}[kind]
    words, end, behind = model.tokens(" a" * 20), model.tokens("</think>"), model.tokens(f"\n\n{answer}")
    assert len(words) >= 20
    for thought, begin in [("open", []), ("may_open", model.tokens("<think>"))]:
        compiled = grammar(GrammarSpec(kind, text, thought, budget), model)
        for num_words in range(budget + 1):
            if 1 < len(end) > budget - num_words > 0:
                continue  # a tag that is text has its own tokens in the budget
            assert is_allowed(model.library, compiled, [*begin, *words[:num_words], *end, *behind])
        assert not is_allowed(model.library, compiled, [*begin, *words[: budget + 1], *end, *behind])
        assert goes_on_alike(model.library, compiled, [*begin, *words[:budget]])
        assert goes_on_alike(model.library, compiled, [*begin, *words[:budget], *end])


def test_a_budget_ends_a_thought_within_its_tags_and_characters(model: Model):
    compiled = grammar(GrammarSpec("json", POINT, "open", 6), model)
    end = model.tokens("</think>")
    for cut in [
        model.tokens("\U0001f9ab\U0001fae8")[:6],
        DEMO.tokens("hello</think")[:6],
    ]:
        assert len(cut) == 6
        text = model.text([*cut, *end, *model.tokens('{"x": 1}')])
        assert is_allowed(model.library, compiled, [*cut, *end, *model.tokens('{"x": 1}')])
        assert message(text, "none", "open").content == '{"x": 1}'


@pytest.mark.parametrize("thought", ["open", "may_open"])
def test_with_any_answer_only_the_thought_is_held(thought: Any, model: Model):
    compiled = grammar(GrammarSpec("any", "", thought, 12), model)
    begin = "<think>" if thought == "may_open" else ""
    for answer in ["", "Yes.", "<|im_start|> <tool_call>x", "a</think>b <think> c", " \n"]:
        assert model.may_write(compiled, f"{begin}hm</think>{answer}"), answer
    without = ["", "Yes. <think> a", "\n\nYes <|im_start|><think>", "<|im_start|>", "<thin", "  "]
    assert [text for text in without if model.may_write(compiled, text)] == ([] if thought == "open" else without)
    assert not model.may_write(compiled, f"\n{begin}{' a' * 30}") or thought == "open"


def test_any_text_without_a_thought(model: Model):
    compiled = grammar(GrammarSpec("any", ""), model)
    assert model.may_write(compiled, "Yes. <think> <|im_start|>")
    assert model.may_write(compiled, "")
