"""Matchers of lanes: what one text uses up is no other's loss, and what is dropped is made again."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from common import messages as m
from common.constraints import StartedLane
from common.model_files import DEMO_MODEL_DIR
from common.wire import IntArray
from executor_svc.runner import grammar_masks, grammar_texts
from executor_svc.runner.grammar_masks import GrammarMasks, load_grammar_masks
from executor_svc.staging.constrained_lanes import ConstrainedLane

VOCAB, EOS = 2048, 2045
TOKENIZER = LLTokenizer(str(DEMO_MODEL_DIR / "tokenizer.json"), n_vocab=VOCAB)
GREEDY_FOR_STATES = LLMatcher.grammar_from_regex(r"(.|\n)*a(.|\n){24}b(.|\n){30}c")


def bits(mask: IntArray) -> list[int]:
    """Tokens that a mask allows."""
    allowed: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return allowed


class Drawn:
    """A step that has drawn these tokens."""

    def __init__(self, *tokens: int) -> None:
        self._tokens = tokens

    def token_ids(self) -> IntArray:
        return np.array(self._tokens, np.int32)


class Lane:
    """A lane that draws among the tokens that its mask allows."""

    def __init__(
        self,
        masks: GrammarMasks,
        number: int,
        grammar: str,
        of: Sequence[int] = (),
        generated: Sequence[int] = (),
    ) -> None:
        start = m.LaneStart(
            lane=number,
            num_prompt=1,
            tokens=np.array([1, *generated], "<i4").tobytes(),
            constraints=m.Constraints(grammar=grammar, allowed_token_ids=np.array(of, "<i4").tobytes()),
            stop_token_ids=np.array([EOS], "<i4").tobytes(),
        )
        self._lane = ConstrainedLane.started(StartedLane.of(start), VOCAB)
        self._masks = masks
        self._rng = random.Random(number)
        self._is_new = True
        self.tokens: list[int] = []

    def allowed(self) -> list[int]:
        """Tokens that may come next."""
        number = self._lane.start.message.lane
        pending = self._masks.begin([self._lane], {number} if self._is_new else set())
        assert pending is not None
        self._is_new = False
        result = pending.result()
        mask = result.masks[result.rows[number]]
        return bits(mask)

    def draw(self, count: int, among: set[int] | None = None) -> None:
        """Draw so many tokens, of these where one of them is allowed."""
        for _ in range(count):
            allowed = self.allowed()
            assert allowed, f"no token is allowed after {len(self.tokens)}"
            wanted = [token for token in allowed if among and token in among] or allowed
            token = self._rng.choice([token for token in wanted if token != EOS] or wanted)
            self.tokens.append(token)
            self._masks.launched([self._lane], [0], Drawn(token))


@pytest.fixture
def masks():
    made = load_grammar_masks(DEMO_MODEL_DIR, VOCAB, None)  # for as long as masks take
    assert made is not None
    yield made
    made.close()


def test_a_text_that_uses_up_the_shared_lexer_harms_no_other(
    masks: GrammarMasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = LLParserLimits(max_lexer_states=3000, verbose_errors=False)
    monkeypatch.setattr(grammar_texts, "parser_limits", lambda: limits)
    ab = {i for i in range(VOCAB) if set(TOKENIZER.decode_str([i])) <= set("ab")}
    victim = Lane(masks, 0, GREEDY_FOR_STATES)
    victim.draw(3)
    grammar = masks._grammars.get(GREEDY_FOR_STATES)
    base = grammar.base
    for number in range(1, 5):
        greedy = Lane(masks, number, GREEDY_FOR_STATES)
        for _ in range(400):
            if not greedy.allowed():
                break
            greedy._masks.launched([greedy._lane], [0], Drawn(min(ab)))
            greedy.draw(1, ab)
    assert grammar.base is not base, "the limit was never met"
    victim.draw(3)
    Lane(masks, 9, GREEDY_FOR_STATES).draw(3)


def test_an_idle_lane_keeps_its_tokens_and_no_matcher(masks: GrammarMasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_masks, "_IDLE_PLANS", 3)
    grammar = LLMatcher.grammar_from_regex("[a-z]{10,20}")
    idle, always = Lane(masks, 0, grammar), Lane(masks, 1, LLMatcher.grammar_from_regex("[0-9]+"))
    idle.draw(5)
    always.draw(6)
    assert masks._lanes[0].text.matcher is None
    matcher = LLMatcher(TOKENIZER, grammar)
    matcher.consume_tokens(idle.tokens)
    mask = np.frombuffer(matcher.compute_bitmask()[: VOCAB // 8], np.uint8)
    expected = {*np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()} - {EOS}
    assert {*idle.allowed()} - {EOS} == expected
    assert masks._lanes[1].text.matcher is not None


def test_a_grammar_allows_tokens_of_the_lane_s_list_alone(masks: GrammarMasks) -> None:
    """Stop tokens, too: one that is not in the list stays banned where the text is whole."""
    grammar = LLMatcher.grammar_from_regex("[ab]*")
    free = Lane(masks, 0, grammar).allowed()
    assert EOS in free
    few = free[:2]
    assert Lane(masks, 1, grammar, of=[*few, max(set(range(VOCAB)) - {*free})]).allowed() == few
    assert Lane(masks, 2, grammar, of=[*few, EOS]).allowed() == [*few, EOS]


def test_an_epoch_s_lanes_are_forgotten(masks: GrammarMasks) -> None:
    Lane(masks, 0, LLMatcher.grammar_from_regex("x+")).draw(2)
    masks.forget_lanes()
    Lane(masks, 1, LLMatcher.grammar_from_regex("x+")).draw(2)
    assert list(masks._lanes) == [1]
    assert list(masks._newest) == [1]


def test_lanes_of_a_plan_have_the_masks_that_each_has_alone(masks: GrammarMasks) -> None:
    """Also beside one whose text does not match, and which may go on with nothing."""
    alone = load_grammar_masks(DEMO_MODEL_DIR, VOCAB, None)
    assert alone is not None
    grammars = [LLMatcher.grammar_from_regex(f"[{'abcdef'[i:]}]{{1,{i + 1}}}") for i in range(6)]
    lanes = [Lane(masks, number, grammar)._lane for number, grammar in enumerate(grammars)]
    apart = [Lane(alone, number, grammar) for number, grammar in enumerate(grammars)]
    (wrong,) = TOKENIZER.tokenize_str("z")
    for step in range(4):
        pending = masks.begin(lanes, set(range(6)) if step == 0 else set())
        assert pending is not None
        filled, tokens = pending.result(), []
        for number, lane in enumerate(apart):
            allowed = lane.allowed()
            assert bits(filled.masks[filled.rows[number]]) == allowed
            assert bool(allowed) == (number != 2 or step < 2)
            tokens.append(wrong if (number, step) == (2, 1) else min(allowed, default=EOS))
            alone.launched([lane._lane], [0], Drawn(tokens[-1]))
        masks.launched(lanes, list(range(6)), Drawn(*tokens))
    alone.close()


def test_as_many_grammars_are_kept_as_their_bytes_allow(masks: GrammarMasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were asked for last; one that a lane uses goes on."""
    monkeypatch.setattr(grammar_texts, "KEPT_BYTES", 3 * grammar_texts.COMPILED_BYTES)
    regexes = [LLMatcher.grammar_from_regex(f"[a-z]{{1,{i + 1}}}") for i in range(5)]
    first = Lane(masks, 9, regexes[0])
    first.draw(1)
    for number, regex in enumerate(regexes):
        Lane(masks, number, regex).draw(1)
        masks._grammars.get(regexes[1])
    assert [*masks._grammars._kept] == [regexes[3], regexes[4], regexes[1]]
    assert EOS in first.allowed()
