"""Matchers of lanes: what one text uses up is no other's loss, and what is dropped is made again."""

import contextlib

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from common.model_files import DEMO_MODEL_DIR
from common.wire import IntArray
from executor_svc.runner.grammar_masks import GrammarMasks, load_grammar_masks
from executor_svc.runner.grammar_texts import COMPILED_BYTES, Grammars, GrammarText
from tests.executor_svc.runner.grammar_lanes import EOS, TOKENIZER, VOCAB, Drawn, Lane, bits

GREEDY_FOR_STATES = LLMatcher.grammar_from_regex(r"(.|\n)*a(.|\n){24}b(.|\n){30}c")


@pytest.fixture
def masks():
    made = load_grammar_masks(DEMO_MODEL_DIR, VOCAB, None)  # for as long as masks take
    assert made is not None
    yield made
    made.close()


class NotedTexts(Grammars):
    """Grammars whose texts the test sees, too."""

    def __init__(self, **limits: object) -> None:
        super().__init__(TOKENIZER, VOCAB, **limits)
        self.texts: list[GrammarText] = []

    def text(self, grammar: str, stops: IntArray) -> GrammarText:
        self.texts.append(super().text(grammar, stops))
        return self.texts[-1]


def test_a_text_that_uses_up_the_shared_lexer_harms_no_other() -> None:
    grammars = Grammars(TOKENIZER, VOCAB, limits=LLParserLimits(max_lexer_states=3000, verbose_errors=False))
    with contextlib.closing(GrammarMasks(TOKENIZER, VOCAB, None, grammars)) as masks:
        ab = {i for i in range(VOCAB) if set(TOKENIZER.decode_str([i])) <= set("ab")}
        victim = Lane(masks, 0, GREEDY_FOR_STATES)
        victim.draw(3)
        grammar = grammars.get(GREEDY_FOR_STATES)
        base = grammar.base
        for number in range(1, 5):
            greedy = Lane(masks, number, GREEDY_FOR_STATES)
            for _ in range(400):
                if not greedy.allowed():
                    break
                masks.launched([greedy.lane], [0], Drawn(min(ab)))
                greedy.draw(1, ab)
        assert grammar.base is not base, "the limit was never met"
        victim.draw(3)
        Lane(masks, 9, GREEDY_FOR_STATES).draw(3)


def test_an_idle_lane_keeps_its_tokens_and_no_matcher() -> None:
    grammars = NotedTexts()
    with contextlib.closing(GrammarMasks(TOKENIZER, VOCAB, None, grammars, idle_plans=3)) as masks:
        grammar = LLMatcher.grammar_from_regex("[a-z]{10,20}")
        idle, always = Lane(masks, 0, grammar), Lane(masks, 1, LLMatcher.grammar_from_regex("[0-9]+"))
        idle.draw(5)
        always.draw(6)
        of_idle, of_always = grammars.texts
        assert of_idle.matcher is None
        matcher = LLMatcher(TOKENIZER, grammar)
        matcher.consume_tokens(idle.tokens)
        mask = np.frombuffer(matcher.compute_bitmask()[: VOCAB // 8], np.int32)
        assert {*idle.allowed()} - {EOS} == {*bits(mask)} - {EOS}
        assert of_always.matcher is not None


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
    lanes = [Lane(masks, number, grammar).lane for number, grammar in enumerate(grammars)]
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
            alone.launched([lane.lane], [0], Drawn(tokens[-1]))
        masks.launched(lanes, list(range(6)), Drawn(*tokens))
    alone.close()


def test_as_many_grammars_are_kept_as_their_bytes_allow() -> None:
    """Those that were asked for last; one that a lane uses goes on."""
    grammars = Grammars(TOKENIZER, VOCAB, kept_bytes=3 * COMPILED_BYTES)
    with contextlib.closing(GrammarMasks(TOKENIZER, VOCAB, None, grammars)) as masks:
        regexes = [LLMatcher.grammar_from_regex(f"[a-z]{{1,{i + 1}}}") for i in range(5)]
        first = Lane(masks, 9, regexes[0])
        first.draw(1)
        seen = {}
        for number, regex in enumerate(regexes):
            Lane(masks, number, regex).draw(1)
            seen[regex] = grammars.get(regex)
            grammars.get(regexes[1])
        assert [grammars.get(regexes[each]) is seen[regexes[each]] for each in (3, 4)] == [True, True]
        assert [grammars.get(regexes[each]) is seen[regexes[each]] for each in (0, 2)] == [False, False]
        assert EOS in first.allowed()


def test_a_grammar_that_is_asked_for_again_stays() -> None:
    grammars = Grammars(TOKENIZER, VOCAB, kept_bytes=2 * COMPILED_BYTES)
    first, second = grammars.get("a"), grammars.get("b")
    assert grammars.get("a") is first
    grammars.get("c")
    assert grammars.get("a") is first
    assert grammars.get("b") is not second
