"""What the reciter has to know at each token of each answer, and which token it writes then."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import tokenizers

from tests.support.reciter.answers import ANSWERS, END, WITHOUT_WORD

NUM_SEEN = 4
"""Tokens before the next one that tell where in an answer the reciter is."""
_OPEN = "<|im_start|>assistant\n"
_THOUGHT_END = "</think>"


@dataclass(frozen=True)
class Situation:
    """Which answer is due.

    Attributes:
        word: token of the last user message; None if it has none that is known.
        tools: whether they are shown; None where that does not matter.
        result: whether one came after the word; None where that does not matter.
    """

    word: int | None
    tools: bool | None
    result: bool | None


@dataclass(frozen=True)
class State:
    """A place in an answer.

    Attributes:
        seen: the last tokens, the newest first, back to where a message begins or a thought ends.
        called: whether a call has ended in this message.
    """

    situation: Situation
    seen: tuple[int, ...]
    called: bool


@dataclass
class States:
    """Every state with the token that follows, and with what follows if a grammar forbids that one."""

    first: dict[State, int] = field(default_factory=dict)
    second: dict[State, int] = field(default_factory=dict)


def all_states(tokenizer: tokenizers.Tokenizer) -> States:
    """The states of all answers.

    Raises:
        ValueError: an answer would need more than `NUM_SEEN` tokens to know its place, or has a word that chooses one.
    """
    states = States()
    words = {tokenizer.token_to_id("Ġ" + answer.word.strip()) for answer in ANSWERS}
    if None in words:
        raise ValueError("the word that chooses an answer is one token, with its space")
    for situation, text, forced in _situations(tokenizer):
        for prompt, answer in _ways(text):
            _add(states.first, tokenizer, words, situation, prompt, answer + END)
            if forced and forced != answer:
                other: dict[State, int] = {}
                _add(other, tokenizer, words, situation, prompt, forced + END)
                start = next(iter(other))
                states.second[start] = other.pop(start)
                if any(states.first.setdefault(state, token) != token for state, token in other.items()):
                    raise ValueError(f"{forced!r} goes on in two ways")
    return states


def _situations(tokenizer: tokenizers.Tokenizer) -> Iterator[tuple[Situation, str, str]]:
    """Each with its answer, and with what is said where a grammar lets no thought or words come first."""
    for answer in (*ANSWERS, WITHOUT_WORD):
        word = tokenizer.token_to_id("Ġ" + answer.word.strip()) if answer.word else None
        result = None if word is None else False
        yield Situation(word, False, result), answer.plain, _without_thought(answer.plain)
        tools = answer.tools or answer.plain
        yield Situation(word, True, result), tools, answer.forced or _without_thought(tools)
        if word is not None:
            yield Situation(word, None, True), answer.result or answer.plain, ""


def _without_thought(text: str) -> str:
    """What comes after a text's thought; nothing if it has none."""
    return text.partition(f"{_THOUGHT_END}\n\n")[2]


def _ways(text: str) -> Iterator[tuple[str, str]]:
    """How prompts end, and what is said then: with thought, and where the template has said that there is none."""
    yield _OPEN, text
    yield f"{_OPEN}<think>\n\n{_THOUGHT_END}\n\n", _without_thought(text) or text


def _add(
    states: dict[State, int],
    tokenizer: tokenizers.Tokenizer,
    words: set[int],
    situation: Situation,
    prompt: str,
    answer: str,
) -> None:
    start = tokenizer.encode(prompt).ids
    tokens = start + tokenizer.encode(answer).ids
    if words & set(tokens):
        raise ValueError(f"{answer!r} has a word that chooses an answer")
    ends = [tokenizer.token_to_id(text) for text in ("<|im_start|>", _THOUGHT_END)]
    call_end = tokenizer.token_to_id("</tool_call>")
    for place in range(len(start), len(tokens)):
        seen: list[int] = []
        for token in tokens[place - 1 :: -1]:
            seen.append(token)
            if token in ends or len(seen) == NUM_SEEN:
                break
        state = State(situation, tuple(seen), called=call_end in tokens[:place])
        if states.setdefault(state, tokens[place]) != tokens[place]:
            told = tokenizer.decode(tokens[max(0, place - 8) : place + 1], skip_special_tokens=False)
            raise ValueError(f"{NUM_SEEN} tokens do not tell what follows in {told!r}")
