"""bench_embeddings.py: its passages, its peers' batches, its figures, and our runner's side beside the real model."""

import importlib
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer

from benchmarks.cpu import bench_embeddings as bench
from benchmarks.cpu import parent_lines
from benchmarks.cpu.take_turns import Turn
from benchmarks.rig.runs import TimedRun
from benchmarks.rig.text_checkpoint import write_text_checkpoint
from common.model_files import DEMO_MODEL_DIR

TEXT = "First Citizen: Before we proceed any further, hear me speak.\nAll: Speak, speak.\n" * 20


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO_MODEL_DIR / "tokenizer.json"))


@pytest.fixture(scope="module")
def peer() -> Any:
    """The peers' module, which imports its sibling by its bare name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "parent_lines", parent_lines)
        return importlib.import_module("benchmarks.cpu.peer_embeddings")


@pytest.fixture
def work(tokenizer: Tokenizer, tmp_path: Path) -> bench.Work:
    return bench.Work(bench.passages(TEXT, tokenizer, [5, 20, 9], 6), tokenizer, tmp_path)


def turn(seconds: float, num_tokens: int) -> Turn:
    return Turn(TimedRun(10.0, 10.0 + seconds, num_tokens), 50e9, 50e9, 0.0)


def test_passages_follow_each_other_and_have_their_lengths(tokenizer: Tokenizer) -> None:
    found = bench.passages(TEXT, tokenizer, [5, 20], 4)
    assert "".join(found) == TEXT[: sum(map(len, found))]
    lengths = [len(tokenizer.encode(text).ids) for text in found]
    assert lengths == pytest.approx([5, 20, 5, 20], abs=2)  # the ends of a passage may be tokenized otherwise


def test_a_text_may_be_too_short(tokenizer: Tokenizer) -> None:
    with pytest.raises(click.UsageError, match="too few for 3 passages"):
        bench.passages(TEXT, tokenizer, [10_000], 3)


def test_ratios_are_taken_within_a_round(work: bench.Work) -> None:
    rounds = [
        {"runner": turn(mine, work.num_tokens), "transformers": turn(theirs, work.num_tokens)}
        for mine, theirs in ((1.0, 2.0), (4.0, 2.0), (1.0, 3.0))
    ]
    assert bench.ratio_figures(rounds) == {"runner/transformers": [2.0, 0.5, 3.0]}


@pytest.mark.parametrize(("turned", "tokens", "fails"), [(0.0, 0, None), (0.2, 0, "cosine"), (0.0, 1, "tokens")])
def test_a_side_that_did_other_work_is_found(work: bench.Work, turned: float, tokens: int, fails: str | None) -> None:
    ours = np.eye(len(work.texts), 8, dtype=np.float32)
    theirs = ours.copy()
    theirs[2, 7], theirs[2, 2] = turned, np.sqrt(1 - turned**2)
    np.save(work.out("runner"), ours)
    np.save(work.out("openvino"), theirs)
    rounds = [{"runner": turn(1, work.num_tokens), "openvino": turn(1, work.num_tokens + tokens)}]
    if fails is None:
        assert bench.check(work, rounds) == pytest.approx({"runner": 1.0, "openvino": 1.0})
        return
    with pytest.raises(click.ClickException, match=fails):
        bench.check(work, rounds)


def test_a_peers_padded_batches_give_what_each_text_gives_alone(peer: Any, work: bench.Work, tmp_path: Path) -> None:
    """In the texts' order, whatever the batches: against transformers without any padding."""
    folder = write_text_checkpoint(tmp_path / "tiny", "tiny")
    wanted = {"texts": work.texts, "batch_sizes": [4], "out": str(tmp_path / "out.npy"), "threads": 1}
    threads = torch.get_num_threads()
    try:
        ways = peer.transformers_ways(str(folder), wanted["threads"])
    finally:
        torch.set_num_threads(threads)
    embedder = peer.Peer(str(folder), {"float32": ways["float32"]}, wanted)
    run = embedder.run()
    assert run["num_tokens"] == work.num_tokens
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        states = torch.cat([model(torch.tensor([ids])).last_hidden_state[:, -1] for ids in work.prompts])
    expected = torch.nn.functional.normalize(states).numpy()
    assert np.load(wanted["out"]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_the_runner_embeds_what_transformers_does(work: bench.Work, tmp_path: Path) -> None:
    """The side in its own process, as the benchmark starts it."""
    folder = write_text_checkpoint(tmp_path / "tiny", "tiny")
    with bench.our_side("runner", folder, work, ["--dtype", "float32", "--threads", "1"]) as run:
        assert run("first", None).num_tokens == work.num_tokens
        run("second", None)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        states = torch.cat([model(torch.tensor([ids])).last_hidden_state[:, -1] for ids in work.prompts])
    assert np.load(work.out("runner")) == pytest.approx(torch.nn.functional.normalize(states).numpy(), abs=1e-5)
