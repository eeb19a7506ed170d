"""Lark grammars as regular expressions: the same texts as llguidance's own reading of them, and inside of calls."""

import json
import re

import msgspec
import pytest
from llguidance import LLMatcher, LLTokenizer

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.grammars.checker import check
from scheduler_svc.frontend.grammars.lark_pattern import MAX_PATTERN_CHARACTERS, lark_pattern
from scheduler_svc.frontend.grammars.spec import GrammarSpec, ToolGrammar, ToolSchema
from tests.frontend.grammars.apply_patch import APPLY_PATCH, PATCH
from tests.frontend.walks import is_allowed

TOKENIZER = LLTokenizer(str(DEMO_MODEL_DIR / "tokenizer.json"))
EXEC = """
start: pragma_source | plain_source
pragma_source: PRAGMA_LINE NEWLINE SOURCE
plain_source: SOURCE

PRAGMA_LINE: /[ \\t]*\\/\\/ @exec:[^\\r\\n]*/
NEWLINE: /\\r?\\n/
SOURCE: /[\\s\\S]+/
"""
OTHERS = r"""
// a comment, and a rule over several lines
?start: head ("," WORD)~1..2 [TAIL]
      | "x"~3
head.2: "A".."C" | "say \"\\\n\u00e9"i -> said
TAIL: /[!?]/ | "." "."
%import common.WORD
%import common.INT -> NUMBER
%ignore / +/
_unused: NUMBER
"""
ESCAPES = r"""
%import common (INT, LF)
start: "\ud83d\ude00" "\x41" "\u0030".."\u0039" INT LF
"""
CASES = [
    (APPLY_PATCH, [PATCH, PATCH + "\n", "*** Begin Patch\n*** Delete File: a\n*** Add File: b\n+\n*** End Patch"],
     ["", PATCH.replace("-x", "x"), PATCH + "\n\n", PATCH.removesuffix(" Patch"), "*** Begin Patch\n*** End Patch"]),
    (EXEC, ["1", "// @exec: {}\nf()\n"], [""]),
    (OTHERS, ["A,b", "B ,  b,cd?", "C,b..", "xxx", 'SAY "\\\nÉ,b'], ["D,b", "A", "A,b,c,d", "xx", "A,b.", "A,1"]),
    (ESCAPES, ["😀A512\n"], ["😀x5x\n", "😀A5"]),
]  # fmt: skip


def fits(grammar: str, text: str) -> bool:
    """Whether a grammar in llguidance's own format takes all of a text."""
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(("grammar", "right", "wrong"), CASES, ids=["apply_patch", "exec", "others", "escapes"])
def test_a_pattern_takes_what_its_grammar_takes(grammar: str, right: list[str], wrong: list[str]):
    pattern = LLMatcher.grammar_from_regex(lark_pattern(grammar))
    assert [text for text in right if not fits(pattern, text)] == []
    assert [text for text in wrong if fits(pattern, text)] == []


@pytest.mark.parametrize("text", [*CASES[0][1], *CASES[0][2]])
def test_codex_patches_are_what_llguidance_reads_itself(text: str):
    own = LLMatcher.grammar_from_lark(APPLY_PATCH)
    assert fits(LLMatcher.grammar_from_regex(lark_pattern(APPLY_PATCH)), text) == fits(own, text)


def call(format_: str, text: str) -> str:
    written = json.dumps({"input": text}, ensure_ascii=False)
    match format_:
        case "hermes":
            return f'<tool_call>\n{{"name": "apply_patch", "arguments": {written}}}\n</tool_call>'
        case "json":
            return f'{{"name": "apply_patch", "parameters": {written}}}'
    return f"<tool_call>\n<function=apply_patch>\n<parameter=input>\n{text}\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize("format_", ["hermes", "json", "qwen3_coder"])
def test_the_input_of_a_call_is_held_to_it_in_every_format(format_):
    value = {"type": "string", "pattern": f"^(?:{lark_pattern(APPLY_PATCH)})$"}
    schema = {"type": "object", "properties": {"input": value}, "required": ["input"], "additionalProperties": False}
    asked = ToolGrammar(format_, [ToolSchema("apply_patch", schema)], is_required=True, is_one_call=True)
    checked = check(GrammarSpec("tools", json.dumps(msgspec.to_builtins(asked))), TOKENIZER)
    assert checked.reason == ""
    for text, is_right in [(PATCH, True), (PATCH.replace("-x", "x"), False)]:
        tokens = TOKENIZER.tokenize_str(call(format_, text), parse_special=True)
        assert is_allowed(TOKENIZER, checked.grammar, tokens) == is_right


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('start: "a" start?', "its rule 'start' refers to itself"),
        ("start: a\na: b\nb: a | /x/", "its rule 'a' refers to itself"),
        ("start: a", "no rule 'a'"),
        ("a: /x/", "no rule 'start'"),
        ('start: "a"\nstart: "b"', "'start' is defined twice"),
        ('start: ("a"', "'(' without its end"),
        ('start: "a")', "where its rule has to end"),
        ('start: ""', "an empty string"),
        (r'start: "\d"', r'the string "\d", which cannot be read'),
        (r'start: "\ud83d"', "which cannot be read"),
        ('| "a"', "begins with '|'"),
        ("start /x/", "defines nothing"),
        ("start: {", "which is no Lark"),
        ("start: /x/~", "no number"),
        ("%import other.X\nstart: /x/", "is not supported"),
        ("%declare X\nstart: /x/", "is not supported"),
        ('start: "ab".."c"', "a range that is not of two characters"),
        ("start: " + "(" * 999 + "/x/" + ")" * 999, "nested too deeply"),
        ("\n".join(["start: a0", *(f"a{n}: a{n + 1} a{n + 1}" for n in range(40)), "a40: /x/"]), "characters"),
        ("start: " + "/xxxxxxxx/ " * 8000, f"more than {MAX_PATTERN_CHARACTERS} characters"),
        ("\n".join([*(f"a{n}: a{n + 1}" for n in range(999)), "a999: /x/", "start: a0"]), "nested too deeply"),
    ],
)
def test_grammars_that_are_no_patterns(grammar: str, reason: str):
    with pytest.raises(ValueError, match=re.escape(reason)):
        lark_pattern(grammar)
