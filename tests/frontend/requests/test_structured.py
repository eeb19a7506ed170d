"""What requests may say of their answer's text, before it is compiled."""

import copy
import json

import pytest

from common import messages as m
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.grammars.spec import GrammarSpec
from scheduler_svc.frontend.requests.body import parse
from scheduler_svc.frontend.requests.chat import tokenize_chat
from scheduler_svc.frontend.requests.constraints import MAX_GRAMMAR_BYTES
from scheduler_svc.frontend.requests.schemas import ChatRequest, CompletionRequest
from scheduler_svc.frontend.requests.structured import MAX_SPEC_BYTES
from scheduler_svc.frontend.requests.tokenized_request import TokenizedRequest, tokenize_completion
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from tests.support.chats import finished
from tests.support.demo_tokenizer import TOKENIZER

SCHEMA = {"type": "object", "properties": {"b": {"enum": [None, "é"]}, "a": {}}}
TAGS = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": ""}], "triggers": ["<"]}


def completion(tokenizer: Tokenizer = TOKENIZER, **asked: object) -> TokenizedRequest:
    body = {"model": "m", "prompt": "x", "max_tokens": 100} | asked
    return tokenize_completion(parse(json.dumps(body).encode(), CompletionRequest), tokenizer, 2048)


def chat(**asked: object) -> TokenizedRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]} | asked
    return finished(tokenize_chat(parse(json.dumps(body).encode(), ChatRequest), TOKENIZER, 2048), TOKENIZER)


def named(schema: object, **more: object) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}}


def said(text: object) -> dict:
    return {"structured_outputs": text}


@pytest.mark.parametrize("ask", [completion, chat])
@pytest.mark.parametrize(
    ("asked", "kind", "content", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json", {"type": "object"}, "response_format"),
        (named(SCHEMA), "json", SCHEMA, "response_format.json_schema.schema"),
        (named(SCHEMA, strict=False, description="x"), "json", SCHEMA, "response_format.json_schema.schema"),
        ({"response_format": {"type": "structural_tag"} | TAGS}, "structural_tag", TAGS, "response_format"),
        (said({"json": SCHEMA}), "json", SCHEMA, "structured_outputs.json"),
        (said({"json": json.dumps(SCHEMA)}), "json", SCHEMA, "structured_outputs.json"),
        (said({"json_object": True}), "json", {"type": "object"}, "structured_outputs.json_object"),
        (said({"choice": ["", "a"]}), "choice", ["", "a"], "structured_outputs.choice"),
        (said({"structural_tag": TAGS}), "structural_tag", TAGS, "structured_outputs.structural_tag"),
        (
            said({"structural_tag": json.dumps({"type": "structural_tag"} | TAGS)}),
            "structural_tag",
            TAGS,
            "structured_outputs.structural_tag",
        ),
        (said({"regex": "[a]"}), "regex", "[a]", "structured_outputs.regex"),
        (said({"regex": "[a]", "json": None, "choice": None}), "regex", "[a]", "structured_outputs.regex"),
        (said({"regex": ""}), "regex", "", "structured_outputs.regex"),
        (said({"grammar": "start: /x/"}), "grammar", "start: /x/", "structured_outputs.grammar"),
    ],
)
def test_ways_to_say_it(ask, asked: dict, kind: str, content: object, param: str):
    spec, named_param = ask(**asked).grammar
    assert (spec.kind, named_param) == (kind, param)
    text = spec.text if isinstance(content, str) else json.loads(spec.text)
    assert text == content
    if isinstance(content, dict) and "properties" in content:
        assert list(text["properties"]) == ["b", "a"], "answers have this order"


@pytest.mark.parametrize(
    "asked", [{}, {"response_format": {"type": "text"}}, {"response_format": None, "structured_outputs": None}]
)
def test_nothing_is_said(asked: dict):
    assert completion(**asked).grammar is None
    assert chat(**asked).grammar is None


def test_the_text_may_be_said_twice_if_one_says_nothing():
    asked = {"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}}
    assert chat(**asked).grammar.spec == GrammarSpec("regex", "a")


DEEP: dict = {}
for _ in range(70):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("asked", "param", "text"),
    [
        ({"response_format": {"type": "json"}}, "response_format.type", "'json_schema'"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "takes 'json_schema'"),
        ({"response_format": {"type": "json_object", "triggers": ["x"]}}, "response_format", "takes nothing else"),
        ({"response_format": {"type": "text", "json_schema": {"name": "x", "schema": {}}}}, "response_format", "else"),
        ({"response_format": {"type": "structural_tag", "format": {}}}, "response_format.format", "Unknown"),
        (
            {"response_format": {"type": "structural_tag", "triggers": ["x"]}},
            "response_format",
            "takes 'structures' and 'triggers'",
        ),
        (
            {"response_format": {"type": "structural_tag"} | TAGS | {"triggers": ["y", "f"]}},
            "response_format",
            "no trigger is the beginning of '<f>'",
        ),
        (
            {"response_format": {"type": "structural_tag"} | TAGS | {"triggers": [""]}},
            "response_format.triggers[0]",
            "at least 1 character",
        ),
        (
            {"response_format": {"type": "structural_tag"} | TAGS | {"structures": []}},
            "response_format.structures",
            "at least 1 item",
        ),
        (named("{}"), "response_format.json_schema.schema", "valid dictionary"),
        (named({}, other=1), "response_format.json_schema.other", "Unknown parameter"),
        (named({"minimum": float("nan")}), None, "NaN is no number of JSON"),
        (said({"json": '{"minimum": NaN}'}), "structured_outputs.json", "not JSON compliant"),
        (named({"const": "\ud83d"}), "response_format.json_schema.schema", "surrogates not allowed"),
        (named({"const": "x" * MAX_SPEC_BYTES}), "response_format.json_schema.schema", f"limit is {MAX_SPEC_BYTES}"),
        (named(DEEP), None, "nested more than 64 levels"),
        (said({}), "structured_outputs", "exactly one of json, json_object, regex, choice, grammar, structural_tag"),
        (said({"regex": "a", "choice": ["b"]}), "structured_outputs", "exactly one of"),
        (said({"json_object": False}), "structured_outputs.json_object", "True"),
        (said({"json": "{"}), "structured_outputs.json", "no valid JSON"),
        (said({"json": "[" * 2000}), "structured_outputs.json", "no valid JSON"),
        (said({"json": "[]"}), "structured_outputs.json", "should be an object"),
        (said({"json": json.dumps(DEEP)}), None, "nested more than 64 levels"),
        (said({"choice": []}), "structured_outputs.choice", "at least 1 item"),
        (said({"choice": [1]}), "structured_outputs.choice[0]", "valid string"),
        (said({"regex": "é" * 2**15 + "a"}), "structured_outputs.regex", f"{2**16 + 1} bytes, the limit is 65536"),
        (said({"regex": "\ud83d"}), "structured_outputs.regex", "surrogates not allowed"),
        (said({"grammar": {}}), "structured_outputs.grammar", "valid string"),
        (said({"backend": "xgrammar"}), "structured_outputs.backend", "Unknown parameter"),
        (
            said({"structural_tag": TAGS | {"triggers": ["y"]}}),
            "structured_outputs.structural_tag",
            "no trigger is the beginning",
        ),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
            "send one of them",
        ),
        (said({"regex": "a"}) | {"ignore_eos": True}, "ignore_eos", "not allowed with a grammar"),
        (
            said({"regex": "a"}) | {"ignore_eos": True, "stop_token_ids": [5]},
            "ignore_eos",
            "not allowed with a grammar",
        ),
    ],
)
@pytest.mark.parametrize("ask", [completion, chat])
def test_what_cannot_be_said(ask, asked: dict, param: str | None, text: str):
    with pytest.raises(ApiError) as caught:
        ask(**asked)
    error = caught.value
    assert (error.status, error.param) == (400, param)
    assert text in error.message
    assert len(error.message) < 400


def test_a_model_without_a_stop_token():
    endless = copy.copy(TOKENIZER)
    endless.eos_token_ids = ()
    with pytest.raises(ApiError, match="no stop token"):
        completion(endless, structured_outputs={"regex": "a"})
    assert completion(endless, structured_outputs={"regex": "a"}, stop_token_ids=[5]).grammar


def test_the_grammar_is_one_of_the_constraints():
    request = completion(structured_outputs={"regex": "a"}, presence_penalty=1, prompt=["x", "y"])
    with pytest.raises(AssertionError):
        request.submits(ApiClient("", "", 0, is_admin=False, may_read_status=False), b"")
    submits = request.compiled("start: /a/").submits(ApiClient("", "", 0, is_admin=False, may_read_status=False), b"")
    assert [submit.params.constraints for submit in submits] == [
        m.Constraints(presence_penalty=1.0, grammar="start: /a/")
    ] * 2
    alone = chat(structured_outputs={"regex": "a"}).compiled("start: /a/")
    assert alone.params[0].constraints == m.Constraints(grammar="start: /a/")


def test_a_long_grammar_for_many_prompts():
    """Each prompt is a message of its own, which carries it."""
    asked, size = {"structured_outputs": {"regex": "é"}}, MAX_GRAMMAR_BYTES // 4
    completion(prompt=["x"] * 4, **asked).compiled("é" * (size // 2))
    too_much = f"A grammar of {size} bytes for each of 5 prompts is more than {MAX_GRAMMAR_BYTES} bytes"
    with pytest.raises(ApiError, match=too_much):
        completion(prompt=["x"] * 5, **asked).compiled("é" * (size // 2))
