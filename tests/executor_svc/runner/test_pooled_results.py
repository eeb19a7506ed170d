"""Pooled results are transformers' last hidden states and logits, however plans cut prompts and whatever they find
cached; and a step computes no other logits for them."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import Qwen3ForSequenceClassification

from common import messages as m
from common.errors import CheckpointError
from common.plan import ExecutorLimits, PlanColumns
from common.pooled_rows import PooledRows
from common.step_result import ResultColumns, parse_result
from executor_svc.devices.cpu import CpuPlatform
from executor_svc.model.checkpoint import SINGLE_FILE, Checkpoint
from executor_svc.model.checkpoint_layout import SCORE
from executor_svc.model.families import read_config
from executor_svc.model.prepared import WeightLayout
from executor_svc.model.rank_group import SINGLE_RANK, RankGroup
from executor_svc.model.sharding import Shard
from executor_svc.model.tasks import choose_tasks
from executor_svc.model.weights import new_in_process, read_weights
from executor_svc.runner.group_runner import pack, unpack
from executor_svc.runner.pooled_results import PooledResults, in_order
from executor_svc.runner.runner import Runner
from executor_svc.startup import start_executor
from kernels.cpu import ISA_VARIABLE
from tests.executor_svc.conftest import Make
from tests.executor_svc.gpu_kernels import start_on_gpu_kernels
from tests.executor_svc.harness import (
    RUNNABLE_ISAS,
    Pool,
    Row,
    make_plan,
    poison_cache,
    run,
    start,
    through_the_wire,
    with_last_norm,
)
from tests.executor_svc.ranks import CPU, in_threads, start_rank
from tests.support.checkpoints import VOCAB_SIZE, reference_logits, reference_model
from tests.support.effort import examples
from tests.support.in_process import serve, submit

EVERY = ("generate", "embed", "score")
OPTIONS: dict[str, Any] = {"num_blocks": 32, "block_size": 8, "max_num_seqs": 3, "max_batch_tokens": 24}
OPTIONS |= {"max_model_len": 64, "tasks": EVERY}
BESIDE = [9, 8, 7, 6, 5]  # a prompt whose sequence decodes in every step
MODEL = {"preset": "tiny", "num_layers": 2}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
POOLING = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": False, "include_prompt": True}


@torch.inference_mode()
def expected(folder: Path, tokens: list[int], asked: tuple[int, ...]) -> list[float]:
    """What transformers gives after the last token."""
    if asked:
        values: list[float] = reference_logits(folder, tokens)[-1][list(asked)].tolist()
        return values
    states = reference_model(folder).model(torch.tensor([tokens])).last_hidden_state
    hidden: list[float] = states[0, -1].tolist()
    return hidden


def near(values: list[float]) -> Any:
    return pytest.approx(values, rel=1e-5, abs=1e-5)


def launch(runner: Runner[Any], limits: ExecutorLimits, rows: list[Row]) -> ResultColumns:
    """Run a plan, and check its result as a scheduler does."""
    columns = through_the_wire(make_plan(rows, limits.block_size), limits)
    result = runner.launch(columns).wait().message(1, 0, compute_us=1)
    counts, targets = columns.logprob_counts, columns.prompt_targets
    return parse_result(result, len(columns.sample_rows), limits.vocab_size, counts, targets, columns.pooled)


@pytest.fixture(scope="module")
def started(checkpoint: Make) -> tuple[Runner[Any], ExecutorLimits]:
    """For tests that change nothing but the KV cache."""
    return start(checkpoint(**MODEL), **OPTIONS)


def no_logits(_hidden_states: torch.Tensor, _tokens: torch.Tensor) -> None:
    raise AssertionError("logits of the whole vocabulary are computed")


Prompts = st.lists(
    st.tuples(
        st.integers(1, 64),  # tokens
        st.integers(0, 64),  # of which so many are in the cache already
        st.sampled_from([(), (3,), (7, 2), (5, 5, VOCAB_SIZE - 1)]),
    ),
    min_size=1,
    max_size=2,
)


@given(
    prompts=Prompts, chunks=st.lists(st.sampled_from([2, 3, 7, 8, 11]), min_size=1, max_size=3), seed=st.integers(0, 9)
)
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_they_are_those_of_transformers(
    checkpoint: Make, started: tuple[Runner[Any], ExecutorLimits], prompts: Any, chunks: list[int], seed: int
) -> None:
    """In chunks, behind a cached prefix, beside a sequence that decodes, and two in a step."""
    folder, (runner, limits) = checkpoint(**MODEL), started
    poison_cache(runner)
    pool = Pool(limits.num_blocks, limits.block_size)
    beside_table = pool.grow([], limits.max_model_len)
    beside = [int(run(runner, [Row(2, BESIDE, len(BESIDE), beside_table)], limits)[0])]
    tokens = [random.Random(seed + i).choices(range(VOCAB_SIZE), k=length) for i, (length, *_) in enumerate(prompts)]
    tables = [pool.grow([], length) for length, *_ in prompts]
    cached = [min(cached, length) // 8 * 8 for length, cached, _ in prompts]
    for i, count in enumerate(cached):
        for first in range(0, count, 8):
            run(runner, [Row(i, tokens[i][first : first + 8], first + 8, tables[i], sampled=False)], limits)
    computed = [min(count, length - 1) for count, (length, *_) in zip(cached, prompts, strict=True)]
    found: list[list[float] | None] = [None] * len(prompts)
    step = 0
    while None in found:
        rows, owners = [Row(2, [-1], len(BESIDE) + len(beside), beside_table)], []
        for i, (length, _, asked) in enumerate(prompts):
            first, end = computed[i], min(computed[i] + chunks[step % len(chunks)], length)
            if first < end:
                pooled = asked if end == length else None
                unstored = max(cached[i] - first, 0)
                row = Row(i, tokens[i][first:end], end, tables[i], unstored=unstored, sampled=False, pooled=pooled)
                rows.append(row)
                owners.append(i)
                computed[i] = end
        result = launch(runner, limits, rows)
        beside.append(int(result.token_ids[0]))
        values = result.pooled.tolist()
        for i, row in zip(owners, rows[1:], strict=True):
            if row.pooled is not None:
                size = len(row.pooled) or limits.hidden_size
                found[i], values = values[:size], values[size:]
        step += 1
    for i, (_, _, asked) in enumerate(prompts):
        assert found[i] == near(expected(folder, tokens[i], asked))
    alone = reference_logits(folder, [*BESIDE, *beside[:-1]])[len(BESIDE) - 1 :].argmax(-1).tolist()
    assert beside == alone


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_no_other_logits_are_computed(checkpoint: Make, monkeypatch: pytest.MonkeyPatch, tied: bool) -> None:
    folder = checkpoint(**MODEL, tied=tied)
    runner, limits = start(folder, **OPTIONS)
    monkeypatch.setattr(runner._model, "compute_logits", no_logits)
    rows = [
        Row(0, [5, 6, 7], 3, [3], sampled=False, pooled=(2, 9)),
        Row(1, [8], 1, [4], sampled=False),
        Row(2, [8, 1], 2, [5], sampled=False, pooled=()),
    ]
    result = launch(runner, limits, rows)
    assert result.token_ids.tolist() == []
    assert result.pooled[:2].tolist() == near(expected(folder, [5, 6, 7], (2, 9)))
    assert result.pooled[2:].tolist() == near(expected(folder, [8, 1], ()))


def test_a_row_of_one_token_is_not_taken_for_a_decode_step(checkpoint: Make) -> None:
    """The last token of a prompt, in a runner that pads decode steps to four rows."""
    folder = checkpoint(**MODEL)
    runner, limits = start_rank(folder, SINGLE_RANK, max_num_seqs=4, decode_sizes=(4,))
    rows = [Row(0, [5], 1, [0], sampled=False, pooled=()), Row(1, [6], 1, [1])]
    result = launch(runner, limits, rows)
    assert result.pooled.tolist() == near(expected(folder, [5], ()))
    assert result.token_ids.tolist() == [int(reference_logits(folder, [6])[-1].argmax())]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_first_rank_has_the_results_of_all(checkpoint: Make, size: int, tied: bool) -> None:
    """With tokens of every rank's part of the vocabulary, the last one and its padding among them."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 301}
    folder = checkpoint(preset="tiny", num_layers=1, tied=tied, **heads)
    asked = (0, 63, 64, 150, 191, 192, 299, 300)

    def on_rank(group: RankGroup) -> Any:
        runner, limits = start_rank(folder, group, max_num_seqs=5)
        rows = [
            Row(4, [3, 4, 5], 3, [3], sampled=False, pooled=asked),
            Row(1, [2, 3], 2, [5], sampled=False, pooled=()),
            Row(2, [7, 8], 2, [6]),
        ]
        columns = through_the_wire(make_plan(rows, limits.block_size), limits)
        result = runner.launch(unpack(pack(columns))).wait()
        return result.token_ids.tolist(), result.pooled.tolist()

    first, *others = in_threads(size, on_rank)
    assert first[1][:8] == near(expected(folder, [3, 4, 5], asked))
    assert first[1][8:] == near(expected(folder, [2, 3], ()))
    assert others == [(first[0], [])] * (size - 1), "the others have the tokens, and read no results back"


def test_pooled_rows_reach_the_other_ranks() -> None:
    limits = ExecutorLimits(8, 8, 3, 24, 64, VOCAB_SIZE, 4, EVERY)
    row = Row(2, [1, 2, 3], 3, [0], sampled=False, pooled=(4, 5))
    sent = through_the_wire(make_plan([row, Row(1, [1], 1, [1], sampled=False, pooled=())], 8), limits)
    received = unpack(pack(sent))
    assert sent.pooled is not None
    assert received.pooled is not None
    for name in ("rows", "counts", "token_ids"):
        assert getattr(received.pooled, name).tolist() == getattr(sent.pooled, name).tolist()
    assert received.pooled.hidden_size == 4
    assert unpack(pack(through_the_wire(make_plan([replace(row, pooled=None)], 8), limits))).pooled is None


@given(counts=st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_results_come_in_the_order_of_the_rows(counts: list[int]) -> None:
    column = np.array(counts, np.int32)
    pooled = PooledRows(np.arange(len(counts), dtype=np.int32), column, np.zeros(sum(counts), np.int32), 2)
    rows = [np.full(size, row, np.float32) for row, size in enumerate(pooled.sizes.tolist())]
    hidden_first = [*(rows[i] for i in np.flatnonzero(column == 0)), *(rows[i] for i in np.flatnonzero(column))]
    assert in_order(pooled, np.concatenate(hidden_first)).tolist() == np.concatenate(rows).tolist()


@given(rows=st.integers(1, 300), hidden_size=st.sampled_from([1, 15, 16, 1024, 4096, m.MAX_HIDDEN_SIZE]))
def test_there_is_room_for_the_most_results(rows: int, hidden_size: int) -> None:
    limits = ExecutorLimits(8, 16, rows, 8192, 2**18, VOCAB_SIZE, hidden_size, EVERY)
    room = PooledResults(limits, CPU)
    for count in (0, m.MAX_POOLED_TOKEN_IDS):
        num_rows = min(rows, m.MAX_PLAN_POOLED_FLOATS // (count or hidden_size))
        counts, token_ids = np.full(num_rows, count, np.int32), np.zeros(num_rows * count, np.int32)
        pooled = PooledRows(np.arange(num_rows, dtype=np.int32), counts, token_ids, hidden_size)
        nothing = np.zeros(0, np.int32)
        columns = PlanColumns(*[nothing] * 8, sample_rows=nothing, sampling=None)
        staged = room.stage(replace(columns, query_lens=np.ones(num_rows, np.int32)), pooled)
        assert len(staged.out) == num_rows * (count or hidden_size)
        assert room._arena.holds(staged.token_ids)


def test_a_step_whose_result_was_taken_keeps_its_tokens_only(checkpoint: Make) -> None:
    runner, limits = start(checkpoint(**MODEL), **OPTIONS)
    rows = [Row(0, [5, 6], 2, [0], sampled=False, pooled=()), Row(1, [5], 1, [1])]
    pending = runner.launch(through_the_wire(make_plan(rows, limits.block_size), limits))
    assert len(pending.wait().pooled) == limits.hidden_size
    assert len(pending.token_ids()) == 1
    assert (pending._copies, pending._pooled) == (None, None)


def test_on_the_kernels_of_a_gpu(checkpoint: Make) -> None:
    folder = checkpoint(preset="tiny", num_layers=2, head_dim=64)
    runner, limits = start_on_gpu_kernels(folder, [], [])
    hidden, scored = Row(0, [5, 6, 7], 3, [3], sampled=False, pooled=()), Row(1, [8, 9], 2, [4], sampled=False)
    scored.pooled = (1, 2)
    result = launch(runner, limits, [hidden, scored])
    assert result.pooled[:-2].tolist() == pytest.approx(expected(folder, [5, 6, 7], ()), abs=1e-4)
    assert result.pooled[-2:].tolist() == pytest.approx(expected(folder, [8, 9], (1, 2)), abs=1e-4)


@pytest.mark.parametrize("isa", RUNNABLE_ISAS)
@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_logits_of_packed_heads(
    checkpoint: Make, monkeypatch: pytest.MonkeyPatch, tied: bool, quantization: str, isa: str
) -> None:
    """In bfloat16: of an untied head, bit for bit what sampling would look at; of a tied one, in float32."""
    monkeypatch.setenv(ISA_VARIABLE, isa)
    folder = checkpoint(preset="tiny", num_layers=2, head_dim=64, tied=tied, vocab_size=301, dtype=torch.bfloat16)
    options = OPTIONS | {"block_size": 16, "dtype": "auto"}
    runner, limits = start(folder, quantization=quantization, **options)
    asked = (0, 15, 16, 299, 300, 17, 16)
    hidden, scores = [
        launch(runner, limits, [Row(0, [5, 6, 7], 3, [3], sampled=False, pooled=pooled)]).pooled
        for pooled in ((), asked)
    ]
    run(runner, [Row(0, [5, 6, 7], 3, [3])], limits)
    whole = runner._model.logits(1)[0, list(asked)].float().tolist()
    if not tied:
        assert scores.tolist() == whole
        return
    table = reference_model(folder, torch.bfloat16).lm_head.weight.detach()[list(asked)].float()
    assert scores.tolist() == pytest.approx((table @ torch.from_numpy(hidden.copy())).tolist(), rel=1e-5, abs=1e-5)
    assert scores.tolist() == pytest.approx(whole, rel=0.05 if quantization == "int8" else 0.01, abs=0.3)


@pytest.mark.parametrize("window", [1, 2])
def test_the_scheduler_and_the_runner_together(checkpoint: Make, window: int) -> None:
    """Prompts that share a prefix, longer than a plan, with others that generate; the executor vanishes twice."""
    folder = checkpoint(**MODEL)
    prefix = random.Random(1).choices(range(VOCAB_SIZE), k=30)
    requests, results = [], {}
    for i, asked in enumerate([(), (4, 5), (), (6,)]):
        prompt = [*prefix[: 30 - 7 * i], i, i + 1]
        pooling = "logits" if asked else "hidden"
        requests.append(submit(f"p{i}", prompt, 1, pooling=pooling, pooled_token_ids=asked))
        requests.append(submit(f"g{i}", prompt, 6))
        results[f"p{i}"] = expected(folder, prompt, asked)
    runners = [start(folder, **OPTIONS) for _ in range(2)]
    answers = serve(runners, requests, window=window, lost_at=(2, 5), joins=(0, 0, 1, 1))
    plain = serve(runners[:1], [request for request in requests if request.request_id.startswith("g")])
    for (name, index), answer in answers.items():
        assert answer.end is not None
        if name in results:
            assert np.frombuffer(answer.pooled, np.float32).tolist() == near(results[name])
            assert (answer.end.reason, answer.tokens) == ("stop", [])
        else:
            assert answer.tokens == plain[name, index].tokens


def test_what_is_no_number_ends_its_request(checkpoint: Make, tmp_path: Path) -> None:
    runner, limits = start(with_last_norm(checkpoint(**MODEL), tmp_path / "model", np.nan), **OPTIONS)
    (answer,) = serve([(runner, limits)], [submit("p", [1, 2], 1, pooling="hidden")]).values()
    assert answer.end is not None
    assert (answer.end.code, answer.pooled) == ("internal_error", b"")


# --- checkpoints of embedding models ---


@pytest.fixture
def embedder(checkpoint: Make, tmp_path: Path) -> Path:
    """As sentence-transformers saves one: without a head, whose names begin with `model.` elsewhere."""
    return save_embedder(checkpoint(**MODEL), tmp_path / "embedder")


def save_embedder(folder: Path, to: Path, **pooling: Any) -> Path:
    reference_model(folder).model.save_pretrained(to)
    (to / "modules.json").write_text(json.dumps(MODULES))
    (to / "1_Pooling").mkdir()
    (to / "1_Pooling" / "config.json").write_text(json.dumps(POOLING | {"pooling_mode_lasttoken": True} | pooling))
    return to


@pytest.mark.parametrize(
    ("tasks", "counts"),
    [
        (("generate",), set()),
        (("embed",), {0}),
        (("generate", "score"), {1, m.MAX_POOLED_TOKEN_IDS}),
        (EVERY, {0, 1, m.MAX_POOLED_TOKEN_IDS}),
    ],
)
def test_warm_up_and_memory_are_for_the_tasks_that_are_taken(
    checkpoint: Make, tasks: tuple[m.Task, ...], counts: set[int]
) -> None:
    runner, _ = start(checkpoint(**MODEL), **OPTIONS | {"tasks": tasks})
    plans = [plan.pooled for plan in runner.largest_plans() if plan.pooled is not None]
    assert {count for pooled in plans for count in pooled.counts.tolist()} == counts
    assert all(plan.pooled is None for plan in runner.asking_plans()), "the largest ones have them"
    assert (sum(runner._pooled_results.copied_bytes()) == 0) == (tasks == ("generate",))


def test_both_forms_of_a_checkpoint_are_one_model(checkpoint: Make, embedder: Path) -> None:
    folder = checkpoint(**MODEL)
    (runner, limits), (other, other_limits) = (
        start(each, **OPTIONS | {"tasks": tasks}) for each, tasks in ((embedder, ()), (folder, EVERY))
    )
    assert (limits.tasks, other_limits.tasks) == (("embed",), EVERY)
    row = Row(0, [5, 6, 7], 3, [3], sampled=False, pooled=())
    assert launch(runner, limits, [row]).pooled.tolist() == launch(other, other_limits, [row]).pooled.tolist()


def test_an_untied_model_without_a_head_takes_embeddings_alone(checkpoint: Make, tmp_path: Path) -> None:
    folder = checkpoint(**MODEL, tied=False)
    headless = save_embedder(folder, tmp_path / "embedder")
    runner, limits = start(headless, **OPTIONS | {"tasks": ()})
    result = launch(runner, limits, [Row(0, [5, 6, 7], 3, [3], sampled=False, pooled=())])
    assert result.pooled.tolist() == near(expected(folder, [5, 6, 7], ()))
    with pytest.raises(CheckpointError, match=r"it lacks: lm_head\.weight"):
        start(headless, **OPTIONS)


@pytest.mark.parametrize("tied", [True, False])
def test_what_takes_embeddings_alone_holds_no_head_and_is_the_same_model(checkpoint: Make, tied: bool) -> None:
    """In bfloat16 C++ kernels pack a head, also one that is the embedding."""
    folder = checkpoint(**MODEL, tied=tied, dtype=torch.bfloat16, head_dim=64)
    config = read_config(folder)
    packing = CpuPlatform(1).packing(config, torch.bfloat16)
    whole = WeightLayout(config, Shard.of(config), torch.bfloat16, packing)
    headless = replace(whole, has_head=False)
    assert not any(name.startswith("head") for name in headless.specs)
    with Checkpoint(folder) as opened:
        (ours, fingerprint), (theirs, of_whole) = (
            read_weights(opened, layout, CPU, SINGLE_RANK, new_in_process(CPU)) for layout in (headless, whole)
        )
    assert fingerprint == of_whole
    assert all(torch.equal(tensor, theirs.tensors[name]) for name, tensor in ours.tensors.items())
    row = Row(0, [5, 6, 7], 3, [3], sampled=False, pooled=())
    answers = []
    for tasks in (EVERY, ("embed",)):
        runner, limits = start(folder, dtype="bfloat16", **OPTIONS | {"tasks": tasks})
        assert (runner._model._head is None) == (tasks == ("embed",))
        answers.append(launch(runner, limits, [row]).pooled.tolist())
    assert answers[0] == answers[1]


def test_fingerprints_of_both_forms_are_equal(checkpoint: Make, embedder: Path) -> None:
    from executor_svc.options import ExecutorOptions

    hellos = [
        start_executor(ExecutorOptions(model=str(each), threads=1, dtype="float32", num_blocks=8)).hello
        for each in (checkpoint(**MODEL), embedder)
    ]
    assert [hello.tasks for hello in hellos] == [("generate",), ("embed",)]
    assert hellos[0].fingerprint == hellos[1].fingerprint
    assert {hello.hidden_size for hello in hellos} == {32}


def test_which_tasks_a_folder_says(embedder: Path, checkpoint: Make, tmp_path: Path) -> None:
    assert choose_tasks(checkpoint(**MODEL)) == ("generate",), "a reranker does not tell that it is one"
    assert choose_tasks(checkpoint(**MODEL), ["score", "embed", "score"]) == ("embed", "score")
    assert choose_tasks(embedder) == ("embed",)
    assert choose_tasks(embedder, ["generate"]) == ("generate",)
    (embedder / "modules.json").unlink()
    assert choose_tasks(embedder) == ("embed",), "its config names a model without a head"
    (tmp_path / "plain").mkdir()
    assert choose_tasks(tmp_path / "plain") == ("generate",)


@pytest.mark.parametrize(
    ("pooling", "complaint"),
    [
        ({"pooling_mode_lasttoken": False, "pooling_mode_mean_tokens": True}, "pools by mean_tokens"),
        ({"pooling_mode_mean_tokens": True}, "pools by lasttoken, mean_tokens"),
        ({"pooling_mode_lasttoken": False}, "pools by nothing"),
        ({"pooling_mode": "cls"}, "pools by cls"),
    ],
)
def test_other_poolings_are_refused(embedder: Path, pooling: dict[str, Any], complaint: str) -> None:
    path = embedder / "1_Pooling" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | pooling))
    with pytest.raises(CheckpointError, match=complaint):
        choose_tasks(embedder)
    assert choose_tasks(embedder, ["score"]) == ("score",), "of no concern there"
    path.write_text(json.dumps({"pooling_mode": "lasttoken"}))
    assert choose_tasks(embedder) == ("embed",)


def test_broken_descriptions_are_refused(embedder: Path) -> None:
    modules = embedder / "modules.json"
    modules.write_text(json.dumps([*MODULES, {"path": "3", "type": "sentence_transformers.models.Dense"}]))
    with pytest.raises(CheckpointError, match="'Dense', which is not supported"):
        choose_tasks(embedder)
    modules.write_text("[{")
    with pytest.raises(CheckpointError, match=r"modules\.json cannot be read"):
        choose_tasks(embedder)
    modules.write_text(json.dumps(MODULES))
    shutil.rmtree(embedder / "1_Pooling")
    with pytest.raises(CheckpointError, match=r"which modules\.json names"):
        choose_tasks(embedder)


def write_tokenizer(folder: Path, words: dict[int, str]) -> None:
    vocab = {words.get(i, f"t{i}"): i for i in range(VOCAB_SIZE)}
    decoder = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    content = {"model": {"type": "BPE", "vocab": vocab, "merges": []}, "decoder": decoder}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def change_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.fixture
def classifier(checkpoint: Make, tmp_path: Path) -> Callable[[int], Path]:
    """Save a classifier with so many labels, as people make rerankers of one."""

    def make(num_labels: int) -> Path:
        torch.manual_seed(5)
        kind = Qwen3ForSequenceClassification
        model = kind.from_pretrained(checkpoint(**MODEL), num_labels=num_labels, dtype=torch.float32)
        model.save_pretrained(tmp_path)
        write_tokenizer(tmp_path, {3: "no", 7: "yes"})
        return tmp_path

    return make


@torch.inference_mode()
def test_a_classifiers_label_is_the_difference_of_yes_and_no(classifier: Callable[[int], Path]) -> None:
    """So that the probability of a "yes", as frontends ask for it, is the sigmoid of the score."""
    folder = classifier(1)
    prompt = [5, 6, 7, 8]
    model = Qwen3ForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    model.config.pad_token_id = 0
    score = model(torch.tensor([prompt])).logits.item()
    runner, limits = start(folder, **OPTIONS | {"tasks": ()})
    assert limits.tasks == ("score",)
    result = launch(runner, limits, [Row(0, prompt, 4, [3], sampled=False, pooled=(3, 7))])
    assert result.pooled.tolist() == near([0.0, score])
    with pytest.raises(CheckpointError, match="a classifier, which generates nothing: take it with --task score"):
        start(folder, **OPTIONS)


def test_a_classifier_that_cannot_be_served_is_refused(classifier: Callable[[int], Path]) -> None:
    with pytest.raises(CheckpointError, match=r"score\.weight of shape \[2, 32\], and only a classifier of one label"):
        start(classifier(2), **OPTIONS | {"tasks": ()})
    folder = classifier(1)
    write_tokenizer(folder, {})
    with pytest.raises(CheckpointError, match=r"tokenizer\.json has no token 'yes'"):
        start(folder, **OPTIONS | {"tasks": ()})
    write_tokenizer(folder, {VOCAB_SIZE - 1: "yes"})
    change_json(folder / "tokenizer.json", lambda content: content["model"]["vocab"].update(yes=VOCAB_SIZE))
    with pytest.raises(CheckpointError, match=rf"has token {VOCAB_SIZE} for 'yes', beyond the model's last one"):
        start(folder, **OPTIONS | {"tasks": ()})
    stored = load_file(folder / SINGLE_FILE)
    save_file(stored | {SCORE: stored[SCORE][0].clone()}, folder / SINGLE_FILE)
    with pytest.raises(CheckpointError, match=r"score\.weight of shape \[32\], and only a classifier of one label"):
        start(folder, **OPTIONS | {"tasks": ()})


@pytest.mark.parametrize("architectures", [None, ["Qwen3ForCausalLM"]])
def test_a_classifier_that_its_configuration_does_not_call_one_generates_nothing(
    classifier: Callable[[int], Path], architectures: list[str] | None
) -> None:
    folder = classifier(1)
    change_json(folder / "config.json", lambda content: content.update(architectures=architectures))
    with pytest.raises(CheckpointError, match=r"score\.weight, .* generates nothing: take it with --task score"):
        start(folder, **OPTIONS | {"tasks": ()})
    _, limits = start(folder, **OPTIONS | {"tasks": ("score",)})
    assert limits.tasks == ("score",)


def test_the_ranks_share_a_classifier(classifier: Callable[[int], Path]) -> None:
    folder = classifier(1)
    config = msgspec.structs.replace(read_config(folder), tied=False, score_token=7)
    with Checkpoint(folder) as opened:
        for rank in range(2):
            shard = Shard.of(config, rank, 2)
            layout = WeightLayout(config, shard, torch.float32)
            weights, _ = read_weights(opened, layout, CPU, SINGLE_RANK, new_in_process(CPU))
            head = weights.matrix("head").parts["weight"]
            rows = head.abs().sum(1).nonzero().flatten().tolist()
            assert rows == [7 - shard.vocab.start] * (7 in shard.vocab)
