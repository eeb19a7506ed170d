"""bench_constraints.py: its requests, its tokenizer, and the whole benchmark once with a tiny model."""

import json

import numpy as np
import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer

from benchmarks.constraints import tokenizer_files
from benchmarks.constraints.asked import CONSTRAINTS, JSON_SCHEMA, NONE, constrained_submits
from benchmarks.constraints.bench_constraints import Sides, measure
from benchmarks.constraints.mask_times import MaskTimes, timed_masks
from benchmarks.constraints.tokenizer_files import SYNTHETIC, synthetic_tokenizer, write_tokenizer
from benchmarks.rig.in_process import in_process
from benchmarks.rig.runs import TimedRun
from benchmarks.rig.workloads import upper_halves
from common import messages as m
from executor_svc.runner.grammar_masks import GrammarMasks
from scheduler_svc.core.scheduling.config import SchedulerConfig
from tests.benchmarks.running import lines

VOCAB_SIZE = 10_240
TEXT = 'Before we proceed any further, hear me speak: {"a": ["\u00e9\U0001f600", {"b": -1.5e3}]}\n\n\tAll.'
REQUESTS = upper_halves(3, 8, 10)
WANTED = sum(request.num_output for request in REQUESTS)


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    """A tokenizer.json of 10,240 tokens."""
    folder = tmp_path_factory.mktemp("synthetic")
    assert write_tokenizer(folder, VOCAB_SIZE, synthetic=True) == SYNTHETIC
    return folder / "tokenizer.json"


# --- requests ---


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_all_requests_ask_for_the_constraint_and_for_the_same_tokens(constraint):
    submits = constrained_submits(REQUESTS, "salt", constraint, VOCAB_SIZE)
    plain = constrained_submits(REQUESTS, "salt", NONE, VOCAB_SIZE)
    for submit, other in zip(submits, plain, strict=True):
        params = submit.params
        assert (params.max_tokens, params.seed, submit.prompt) == (
            other.params.max_tokens,
            other.params.seed,
            other.prompt,
        )
        assert (params.temperature, params.stop_token_ids) == (1.0, ())
        asks = params.constraints is not None or params.logprobs > 0
        assert asks == (constraint != NONE)
        assert params.constraints != m.Constraints()


def test_what_is_asked():
    def params(constraint):
        return [submit.params for submit in constrained_submits(REQUESTS, "salt", constraint, VOCAB_SIZE)]

    assert all(each.logprobs == 21 for each in params("logprobs_20"))
    for each in params("logit_bias"):
        ids = np.frombuffer(each.constraints.bias_token_ids, np.int32)
        assert len(set(ids.tolist())) == 300 == len(np.frombuffer(each.constraints.biases, np.float32))
        assert ids.max() < VOCAB_SIZE
    penalties = params("penalties")[0].constraints
    assert 0 not in (penalties.presence_penalty, penalties.frequency_penalty)
    assert penalties.repetition_penalty != 1


def test_a_document_ends_no_answer(synthetic):
    """Whatever is drawn, there is a next token, and the document is not complete."""
    (submit, *_) = constrained_submits(REQUESTS, "salt", JSON_SCHEMA, VOCAB_SIZE)
    tokenizer = LLTokenizer(str(synthetic), n_vocab=VOCAB_SIZE)
    rng, names = np.random.default_rng(0), set()
    for _ in range(5):
        matcher, drawn = LLMatcher(tokenizer, submit.params.constraints.grammar, log_level=0), []
        for _ in range(128):
            mask = np.zeros(VOCAB_SIZE // 32, np.int32)
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            drawn.append(int(rng.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")))))
            matcher.consume_tokens(drawn[-1:])
            assert not matcher.is_error()
            assert not matcher.is_accepting()
        text = tokenizers.Tokenizer.from_file(str(synthetic)).decode(drawn)
        names |= {name for name in ("id", "title", "status", "author", "email") if f'"{name}":' in text}
    assert names >= {"id", "title", "status"}, "documents get somewhere"


# --- tokenizers ---


def test_a_synthetic_tokenizer_has_every_token_and_text_survives_it(synthetic):
    tokenizer = tokenizers.Tokenizer.from_file(str(synthetic))
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert sorted(tokenizer.get_vocab().values()) == list(range(VOCAB_SIZE))
    ids = tokenizer.encode(TEXT).ids
    assert tokenizer.decode(ids) == TEXT
    assert max(ids) > 2048, "merges that were added are used"
    assert synthetic_tokenizer(3000) == synthetic_tokenizer(3000)


def test_without_the_package_the_tokenizer_is_synthetic_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_files, "CACHE", tmp_path / "cached.json")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tokenizer_files, "_QWEN3_TOKENS", 3000)
    assert write_tokenizer(tmp_path, 3000) == SYNTHETIC
    assert json.loads((tmp_path / "tokenizer.json").read_text()) == synthetic_tokenizer(3000)


@pytest.mark.slow
def test_only_the_very_file_is_taken_for_qwen3s(tmp_path, monkeypatch):
    cached = tmp_path / "cached.json"
    cached.write_bytes(b"{}")
    monkeypatch.setattr(tokenizer_files, "CACHE", cached)
    monkeypatch.setattr(tokenizer_files, "_download", lambda: b"another")
    assert write_tokenizer(tmp_path, 151_936) == SYNTHETIC
    assert cached.read_bytes() == b"{}"


# --- rounds ---


class StandIn:
    """Runs of chosen rates, tokens and steps, one after the other."""

    def __init__(self, rates, tokens=WANTED, steps=10):
        self.num_steps = 0
        self.runs = []
        self._rates = iter(rates)
        self._tokens = tokens
        self._steps = steps

    def run(self, submits):
        self.runs.append(submits)
        self.num_steps += self._steps if isinstance(self._steps, int) else self._steps[len(self.runs) - 1]
        return TimedRun(10.0, 10.0 + self._tokens / next(self._rates), self._tokens)


def test_sides_take_turns_and_the_ratio_is_the_median_of_the_rounds():
    """The machine is half as fast in the second round. Of the first round the constraint has the first run."""
    process = StandIn([1, 80, 100, 50, 45, 100, 100])
    (figures,) = measure(Sides(process, REQUESTS, VOCAB_SIZE), ["penalties"], 3, MaskTimes())
    asked = [submits[0].params.constraints is not None for submits in process.runs]
    assert asked == [True, True, False, False, True, True, False]
    assert figures["ratio_rounds"] == [0.8, 0.9, 1.0]
    assert (figures["ratio"], figures["tok_s"], figures["tok_s_without"]) == (0.9, 80, 100)
    assert (figures["output_tokens"], figures["steps"]) == (WANTED, 10)
    assert len({submits[0].cache_salt for submits in process.runs}) == 7, "no run has another's cached prompts"


@pytest.mark.parametrize("work", [{"steps": [10, 10, 11]}, {"tokens": WANTED - 1}])
def test_unequal_work_fails(work):
    sides = Sides(StandIn([1.0] * 3, **work), REQUESTS, VOCAB_SIZE)
    sides.warm_up("penalties")
    with pytest.raises(RuntimeError, match="each should have"):
        sides.take_turns("penalties", constraint_first=True)


@pytest.mark.slow
def test_masks_are_timed(tiny, synthetic, tmp_path):
    """One mask a row and one wait a step, of steps with a grammar only."""
    for file in tiny["tiny"].iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "tokenizer.json").symlink_to(synthetic)
    original = GrammarMasks.begin
    arguments = ("--model", str(tmp_path), "--device", "cpu", "--num-blocks", "64", "--no-pin-threads")
    with timed_masks() as masks, in_process(arguments, SchedulerConfig()) as process:
        sides = Sides(process, REQUESTS, VOCAB_SIZE)
        sides.take_turns("logit_bias", constraint_first=True)
        assert set(masks.figures().values()) == {None}
        *_, steps = sides.take_turns(JSON_SCHEMA, constraint_first=False)
        assert (len(masks.masks), len(masks.waits)) == (WANTED, steps)
        figures = masks.figures()
        assert list(figures) == [f"us_{what}_{each}" for what in ("mask", "wait") for each in ("mean", "p50", "p99")]
        assert 0 < figures["us_mask_p50"] <= figures["us_mask_p99"]
    assert GrammarMasks.begin is original


@pytest.mark.slow
def test_the_benchmark():
    sizes = ("--num-seqs", "3", "--max-prompt", "8", "--output", "6", "--repeats", "2")
    found = lines("bench_constraints.py", "--model", "tiny", *sizes)
    assert [line["constraint"] for line in found] == list(CONSTRAINTS)
    for line in found:
        assert line["output_tokens"] == 18
        assert line["steps"] == 6
        assert len(line["ratio_rounds"]) == 2
        assert line["ratio"] > 0
        assert ("us_mask_p50" in line) == (line["constraint"] == JSON_SCHEMA)
        assert (line["tokenizer"], line["isa"]) == (SYNTHETIC, "torch")
        assert line["processor"]
