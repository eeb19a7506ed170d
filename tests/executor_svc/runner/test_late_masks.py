"""Masks that are not there in time: only their own lanes are late, and nothing that was begun is lost."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from common import messages as m
from common.wire import IntArray
from executor_svc.runner import grammar_texts
from executor_svc.runner.grammar_masks import GrammarMasks
from executor_svc.runner.grammar_texts import Grammars, GrammarText, TokenReader
from executor_svc.staging.constrained_lanes import ConstrainedLane, LaneMasks
from tests.executor_svc.harness import start
from tests.executor_svc.runner.grammar_lanes import EOS, TOKENIZER, VOCAB, Drawn, Lane, bits
from tests.support.in_process import Answers, serve, submit

SLOW, QUICK = (LLMatcher.grammar_from_regex(regex) for regex in ("[a-z]+", "[0-9]+"))
AMBIGUOUS = LLMatcher.grammar_from_lark('start: e\ne: e e | e e e | /[a-z]/ | " "\n')
MAY_TAKE_S = 0.3  # that steps wait for here: long enough for what is quick on a busy machine
AT_MOST_S = 60.0  # against hanging


class Held:
    """Masks of SLOW are held until `go` is set, from a length of its text on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.held, self.done = threading.Event(), threading.Event(), threading.Event()
        self.begun: Counter[str] = Counter()
        self.after = 0
        fill = GrammarText.fill

        def held(text: GrammarText, tokens: list[int], *more: Any) -> int:
            is_held = text.grammar.text == SLOW and len(text.tokens) >= self.after
            self.begun[text.grammar.text] += 1
            if is_held:
                self.held.set()
                assert self.go.wait(AT_MOST_S)
            outcome = fill(text, tokens, *more)
            if is_held:
                self.done.set()
            return outcome

        monkeypatch.setattr(GrammarText, "fill", held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(monkeypatch)
    yield made
    made.go.set()


@pytest.fixture
def late(held: Held) -> Iterator[Callable[..., GrammarMasks]]:
    """Makes masks that are late soon."""
    made: list[GrammarMasks] = []

    def make(**limits: int) -> GrammarMasks:
        made.append(GrammarMasks(TOKENIZER, VOCAB, MAY_TAKE_S, **limits))
        return made[-1]

    yield make
    held.go.set()
    for masks in made:
        masks.close()


@pytest.fixture
def masks(late: Callable[..., GrammarMasks]) -> GrammarMasks:
    return late()


def lane_of(masks: GrammarMasks, number: int, grammar: str, tokens: list[int] | None = None) -> ConstrainedLane:
    return Lane(masks, number, grammar, generated=tokens or []).lane


def plan(masks: GrammarMasks, lanes: list[ConstrainedLane], started: set[int]) -> LaneMasks:
    pending = masks.begin(lanes, started)
    assert pending is not None
    return pending.result()


def mask_of(result: LaneMasks, number: int) -> list[int]:
    return bits(result.masks[result.rows[number]])


def test_a_slow_mask_delays_no_other_and_is_found_again_in_another_lane(masks: GrammarMasks, held: Held) -> None:
    slow, quick = lane_of(masks, 0, SLOW), lane_of(masks, 1, QUICK)
    plan(masks, [quick], {1})
    result = plan(masks, [slow, lane_of(masks, 2, QUICK)], {0, 2})
    assert result.without == {0: m.LATE}
    assert mask_of(result, 0) == []
    assert mask_of(result, 2)
    masks.launched([slow, quick], [0, 1], Drawn(-1, TOKENIZER.tokenize_str("7")[0]))
    result = plan(masks, [slow, quick], set())
    assert result.without == {0: m.LATE}, "what comes behind a late row has no mask either"
    assert mask_of(result, 1)
    assert held.begun[SLOW] == 1
    again = lane_of(masks, 5, SLOW)
    assert plan(masks, [again, lane_of(masks, 6, QUICK)], {5, 6}).without == {5: m.LATE}
    held.go.set()
    assert held.done.wait(AT_MOST_S)
    while (result := plan(masks, [lane_of(masks, 7, SLOW)], {7})).without:
        pass
    assert held.begun[SLOW] == 1, "it was filled once"
    (a,) = TOKENIZER.tokenize_str("a")
    assert a in mask_of(result, 7)
    masks.launched([lane_of(masks, 7, SLOW)], [0], Drawn(a))
    result = plan(masks, [lane_of(masks, 7, SLOW)], set())
    assert (result.without, EOS in mask_of(result, 7)) == ({}, True), "the text goes on"


def test_a_mask_that_is_slow_all_of_a_sudden_keeps_its_thread_and_no_lane(masks: GrammarMasks, held: Held) -> None:
    """It was quick before, so others of the plan stand behind it."""
    held.after = 1
    slow, quick = lane_of(masks, 0, SLOW), lane_of(masks, 1, QUICK)
    for _ in range(2):  # both grammars are compiled now
        plan(masks, [slow, quick], {0, 1})
    masks.launched([slow, quick], [0, 1], Drawn(TOKENIZER.tokenize_str("a")[0], TOKENIZER.tokenize_str("7")[0]))
    result = plan(masks, [slow, quick], set())
    assert result.without == {0: m.LATE}
    assert EOS in mask_of(result, 1)
    result = plan(masks, [lane_of(masks, 3, QUICK)], {3})
    assert (result.without, bool(mask_of(result, 3))) == ({}, True)


class DrawnLater(Drawn):
    """A step that the device is busy with until `go` is set."""

    def __init__(self, *tokens: int) -> None:
        super().__init__(*tokens)
        self.go, self.waited = threading.Event(), threading.Event()
        self.threads: set[threading.Thread] = set()

    def token_ids(self) -> IntArray:
        self.threads.add(threading.current_thread())
        self.waited.set()
        assert self.go.wait(AT_MOST_S)
        return super().token_ids()


@pytest.mark.parametrize("is_kept", [False, True], ids=["", "a mask keeps the quick thread"])
def test_a_step_that_takes_long_makes_no_mask_late(masks: GrammarMasks, held: Held, is_kept: bool) -> None:
    """Time counts once its tokens are known. The thread that launches never waits for the device itself."""
    held.after = 1
    slow, quick = lane_of(masks, 0, SLOW), lane_of(masks, 1, QUICK)
    for _ in range(2):  # both grammars are compiled now
        plan(masks, [slow, quick], {0, 1})
    if is_kept:
        masks.launched([slow], [0], Drawn(*TOKENIZER.tokenize_str("a")))
        assert masks.begin([slow], set()) is not None
        assert held.held.wait(AT_MOST_S)
    step = DrawnLater(*TOKENIZER.tokenize_str("7"))
    masks.launched([quick], [0], step)
    pending = masks.begin([quick], set())
    assert pending is not None
    results: list[LaneMasks] = []
    launching = threading.Thread(target=lambda: results.append(pending.result()), daemon=True)
    launching.start()
    assert step.waited.wait(AT_MOST_S)
    launching.join(2 * MAY_TAKE_S)
    assert launching.is_alive(), "it waits for the step"
    step.go.set()
    launching.join(AT_MOST_S)
    (result,) = results
    assert (result.without, EOS in mask_of(result, 1)) == ({}, True)
    assert launching not in step.threads
    assert threading.current_thread() not in step.threads


def test_a_step_that_fails_fails_the_plan_that_needs_its_tokens(masks: GrammarMasks) -> None:
    class Failed(Drawn):
        def token_ids(self) -> IntArray:
            raise RuntimeError("a kernel failed")

    quick = lane_of(masks, 1, QUICK)
    plan(masks, [quick], {1})
    masks.launched([quick], [0], Failed())
    with pytest.raises(RuntimeError, match="a kernel failed"):
        plan(masks, [quick], set())
    assert not plan(masks, [quick], {1}).without, "it serves on"


def test_a_sequence_alone_is_waited_for(held: Held) -> None:
    """Its next start would come at once."""
    with contextlib.closing(GrammarMasks(TOKENIZER, VOCAB, may_take_s=2.0)) as masks:
        for _ in range(2):
            assert plan(masks, [lane_of(masks, 0, SLOW)], {0}).without == {0: m.LATE}
        pending = masks.begin([lane_of(masks, 0, SLOW)], {0}, is_alone=True)
        assert pending is not None
        threading.Timer(0.1, held.go.set).start()
        assert pending.result().without == {}


def test_so_many_late_lanes_are_found_again(held: Held, late: Callable[..., GrammarMasks]) -> None:
    """What is forgotten, and was not begun, need not begin any more."""
    masks = late(max_late=2)
    (a,) = TOKENIZER.tokenize_str("a")
    for length in range(4):
        plan(masks, [lane_of(masks, length, SLOW, [a] * length)], {length})
    held.go.set()
    for length in (3, 2):
        while plan(masks, [lane_of(masks, length, SLOW, [a] * length)], {length}).without:
            pass
    assert held.begun[SLOW] == 3, "the first one that was held, and those that were not forgotten"


# --- with a model ---

EOS_IDS = (2045, 2047)
PROMPT = TOKENIZER.tokenize_str("Enter the KING, and with him a list:")
OPTIONS = {"num_blocks": 64, "max_num_seqs": 6, "max_batch_tokens": 64, "max_model_len": 256}
SMALL_BLOCKS = OPTIONS | {"block_size": 8}


def asked(grammar: str) -> dict[str, Any]:
    return {"constraints": m.Constraints(grammar=grammar), "stop_token_ids": EOS_IDS, "temperature": 1.0}


REQUESTS = [
    submit("slow", PROMPT, 15, seed=1, **asked(SLOW)),
    submit("quick", PROMPT, 30, seed=2, **asked(QUICK)),
    submit("plain", PROMPT, 30, seed=3, temperature=1.0),
]


class Counted:
    """A runner that lets the held masks go at its so-maniest step."""

    def __init__(self, runner: Any, held: Held, step: int) -> None:
        self._runner, self._held, self._step = runner, held, step
        self.num_late = self.num_steps = 0

    def launch(self, columns: Any) -> Any:
        self.num_steps += 1
        if self.num_steps == self._step:
            self._held.go.set()
        pending = self._runner.launch(columns)
        self.num_late += int((pending.token_ids() == m.LATE).sum())
        return pending


@pytest.fixture(scope="module")
def undisturbed() -> Answers:
    """No mask is held."""
    return serve([start(None, **SMALL_BLOCKS)], REQUESTS)


@pytest.mark.parametrize("window", [1, 2, 8])
@pytest.mark.parametrize("after", [0, 1, 7])
def test_a_text_with_late_masks_is_the_text_without(undisturbed: Answers, held: Held, after: int, window: int) -> None:
    """Also where its executor is lost meanwhile; others go on while it is late."""
    held.after = after
    runners = [start(None, **SMALL_BLOCKS) for _ in range(2)]
    counted = [(Counted(runner, held, 15), limits) for runner, limits in runners]
    answers = serve(counted, REQUESTS, window=window, lost_at={11})  # type: ignore[arg-type]
    assert sum(runner.num_late for runner, _ in counted) > 0
    for key, answer in undisturbed.items():
        assert answers[key].tokens == answer.tokens


def test_others_have_a_token_in_each_step_beside_a_late_lane(held: Held) -> None:
    runner, limits = start(None, **OPTIONS)
    counted = Counted(runner, held, 25)
    serve([(counted, limits)], REQUESTS, window=2)  # type: ignore[list-item]
    assert counted.num_late > 0
    assert counted.num_steps <= 30 + 15 + 3, "30 of the others, of which it may use 5; then its own 15"


# --- grammars that pass the limits ---

SMALL = LLParserLimits(max_items_in_row=120, step_max_items=3000, max_lexer_states=10_000, verbose_errors=False)
HARD = {
    "ambiguous": AMBIGUOUS,
    "right recursion": LLMatcher.grammar_from_lark("start: s\ns: /[a-z ]/ s | /[a-z ]/\n"),
    "nullable": LLMatcher.grammar_from_lark("start: e\ne: | x e y e\nx: | /[a-z]/\ny: | /[a-z ]/ | e x\n"),
    "many states": LLMatcher.grammar_from_regex(r"(.|\n)*a(.|\n){24}b(.|\n){30}c"),
}


def fill(text: GrammarText, tokens: list[int], grammars: Grammars) -> tuple[int, list[int]]:
    mask = np.zeros(-(-VOCAB // 32), np.int32)
    return text.fill(text.append(tokens), mask, grammars, TokenReader(grammars)), bits(mask)


@pytest.mark.parametrize("name", HARD)
def test_it_ends_at_the_same_token_wherever_its_text_was_read(name: str) -> None:
    grammars, stops = Grammars(TOKENIZER, VOCAB, limits=SMALL), np.array([EOS], np.int32)
    rng = np.random.default_rng(1)
    text = GrammarText(grammars.get(HARD[name]), stops)
    tokens: list[int] = []
    outcomes: list[tuple[int, list[int]]] = []
    last: list[int] = []
    while len(outcomes) < 150:
        outcome, allowed = fill(text, last, grammars)
        outcomes.append((outcome, allowed))
        if outcome == m.TOO_COMPLEX:
            break
        short = [token for token in allowed if len(TOKENIZER.decode_bytes([token])) == 1 and token != EOS]
        last = [int(rng.choice(short))]
        tokens += last
    assert (outcomes[-1][0] == m.TOO_COMPLEX) == (name != "many states")
    for length, expected in enumerate(outcomes):
        if length % 7 == 0 or length >= len(outcomes) - 2:
            elsewhere = Grammars(TOKENIZER, VOCAB, limits=SMALL)
            assert fill(GrammarText(elsewhere.get(HARD[name]), stops), tokens[:length], elsewhere) == expected, length


def test_the_sequence_ends_with_an_error_at_the_same_token_on_two_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_texts, "parser_limits", lambda: SMALL)
    requests = [submit("hard", PROMPT, 200, seed=1, **asked(AMBIGUOUS)), submit("plain", PROMPT, 50, seed=2)]
    runners = [start(None, **OPTIONS) for _ in range(2)]
    alone, moved = serve(runners[:1], requests), serve(runners, requests, lost_at={5, 9, 14})
    for answers in (alone, moved):
        end = answers["hard", 0].end
        assert end is not None
        assert (end.reason, end.code) == ("error", "grammar_too_complex")
        assert len(answers["plain", 0].tokens) == 50
    assert alone["hard", 0].tokens == moved["hard", 0].tokens
