"""Thoughts before answers: the grammar of an answer begins behind a thought, and a thought may have a budget."""

import json

from llguidance import LLTokenizer

from scheduler_svc.frontend.grammars.lark import (
    ANY_TOKENS,
    TEXT,
    grammar_of,
    literal,
    other_special_tokens,
    pattern,
    special_token,
    text_without,
)
from scheduler_svc.frontend.grammars.spec import GrammarSpec
from scheduler_svc.frontend.parsing.held_back import MAX_HELD_SPACES
from scheduler_svc.frontend.parsing.thought import BEGIN, END, ThoughtStart

_ANSWER = "answer"
_BLANK = rf"[ \t\r\n]{{0,{MAX_HELD_SPACES}}}"


def not_as_thought(thought: ThoughtStart) -> str:
    """What a terminal of free text at an answer's beginning ends with: where a thought may come, the text does not
    begin as one, also where the tag is a token of its own."""
    return f" & ~/{_BLANK}{pattern(BEGIN)}(?s:.*)/" if thought == "may_open" else ""


def behind_thought(answer: str, spec: GrammarSpec, tokenizer: LLTokenizer) -> str:
    """A grammar of an answer with a thought before it.

    Args:
        answer: in llguidance's own format.
        spec: what it was made of; its thought is not "none".
    """
    thought, rules = _thought(spec, tokenizer)
    start = f"start: {thought} gap? @{_ANSWER}" if spec.thought == "open" else f"start: ({thought} gap?)? @{_ANSWER}"
    rest = json.loads(answer) if answer.startswith("{") else {"grammars": [{"lark_grammar": answer}]}
    first, *others = rest["grammars"]
    top = {"lark_grammar": grammar_of([start, r"gap: /\n{1,2}/", *rules])}
    return json.dumps({"grammars": [top, {**first, "name": _ANSWER}, *others]}, ensure_ascii=False)


def any_behind_thought(spec: GrammarSpec, tokenizer: LLTokenizer) -> str:
    """Any text, special tokens too, with a thought before it; where the thought may be missing, the text does not
    begin as one."""
    thought, rules = _thought(spec, tokenizer)
    if spec.thought == "open":
        return grammar_of([f"start: {thought} {ANY_TOKENS}", *rules])
    special = other_special_tokens("", tokenizer)
    others = other_special_tokens(BEGIN, tokenizer)
    text = f"words ({special} {ANY_TOKENS})?" if special else "words"
    blank = f"BLANK? ({others} {ANY_TOKENS})?" if others else "BLANK?"
    return grammar_of(
        [
            f"start: {thought} {ANY_TOKENS} | {text} | {blank}",
            "words: WORDS",
            f"WORDS: {TEXT} & ~/{_BLANK}({pattern(BEGIN)}(?s:.*))?/",
            f"BLANK: /{_BLANK}/",
            *rules,
        ]
    )


def _thought(spec: GrammarSpec, tokenizer: LLTokenizer) -> tuple[str, list[str]]:
    """A thought with its tags as far as the answer has them, and the rules that this needs.

    A budget is `max_tokens` of a terminal, which the library ends after so many tokens even within a character. An end
    tag that is no special token is a part of the terminal, since no other could end where it begins. Two terminals then
    race for the text: `ended` has the tag at its end, `cut` has none and is followed by one. Where both are at their
    limit the library takes the one that stands first in the grammar.
    """
    begin = "" if spec.thought == "open" else (special_token(BEGIN, tokenizer) or literal(BEGIN)) + " "
    budget = spec.thought_budget
    end = special_token(END, tokenizer)
    if budget is not None and budget <= 0:
        return f"{begin}{end or literal(END)}", []
    limit = "" if budget is None else f"max_tokens={budget}"
    rules = [f"THOUGHT: {text_without(END)}"]
    if end is not None:
        attribute = f"[{limit}]" if limit else ""
        return f"{begin}thought {end}", [*rules, f"thought{attribute}: THOUGHT"]
    ended = f"ended[lazy{', ' + limit if limit else ''}]: /(?s:.*){pattern(END)}/"
    if not limit:
        return f"{begin}ended", [ended]
    return f"{begin}thought", [*rules, f"thought: cut {literal(END)} | ended", f"cut[{limit}]: THOUGHT", ended]
