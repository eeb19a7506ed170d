"""The executor on a GPU: graphs against eager, both attention backends against transformers, memory over time, and a
swap in the middle of an answer. Skips where there is none."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from executor_svc.runner.runner import Runner
from scheduler_svc.client.http.api import Api
from scheduler_svc.client.service_address import ServiceAddress
from tests.executor_svc import harness
from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import Pool, Row
from tests.support.checkpoints import LARGEST_ERROR, MEAN_ERROR, VOCAB_SIZE, reference_logits
from tests.support.eventually import eventually
from tests.support.fleets import running_fleet

pytestmark = pytest.mark.gpu

ATTENTION = ["triton", "flash_attn"]
OPTIONS = {"device": "cuda", "max_num_seqs": 64, "max_batch_tokens": 2048, "max_model_len": 1024}

SEGMENTS = 3 * 20 * 2**20  # of torch's allocator, for what is between 1 and 10 MiB


def start(folder: Any, **options: Any) -> tuple[Runner, Any]:
    return harness.start(folder, **{"num_blocks": 1024, "block_size": 16, **OPTIONS, **options})


def some_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCAB_SIZE) for _ in range(count)]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 3}], ids=["greedy", "sampled"])
def test_graphs_give_the_tokens_of_eager_steps(checkpoint: Make, sampling: dict[str, float]) -> None:
    folder, rng = checkpoint(preset="0.6B"), random.Random(1)
    prompts = [some_tokens(rng, rng.randint(1, 90)) for _ in range(37)]
    eager, limits = start(folder, enforce_eager=True)
    expected = harness.Driver(eager, limits, chunk=50).generate(prompts, 20, **sampling)
    graphs, _ = start(folder)
    assert len(graphs._graphs._decode) == len(graphs._decode_sizes) > 0
    assert len(graphs._graphs._parts) == len(graphs._token_sizes) > 0
    assert harness.Driver(graphs, limits, chunk=50).generate(prompts, 20, **sampling) == expected


@pytest.mark.parametrize("attention", ATTENTION)
def test_logits_are_as_close_to_float32_as_those_of_transformers(checkpoint: Make, attention: str) -> None:
    """Every position of 64 sequences, in chunks and single tokens, many of them in every step."""
    folder, rng = checkpoint(preset="0.6B", dtype=torch.bfloat16), random.Random(2)
    sequences = [some_tokens(rng, rng.randint(1, 300)) for _ in range(64)]
    runner, limits = start(folder, dtype="bfloat16", attention=attention, num_blocks=128, block_size=256)
    pool = Pool(limits.num_blocks, limits.block_size)
    tables = [pool.grow([], len(sequence)) for sequence in sequences]
    computed = [0] * 64
    ours: list[list[torch.Tensor]] = [[] for _ in sequences]
    while any(done < len(sequence) for done, sequence in zip(computed, sequences, strict=True)):
        rows, owners = [], []
        for index, sequence in enumerate(sequences):
            query = sequence[computed[index] :][: rng.choice([1, 1, 31])]
            if query:
                computed[index] += len(query)
                rows.append(Row(index, query, computed[index], tables[index]))
                owners.append(index)
        found = harness.logits(runner, rows, limits).split([len(row.token_ids) for row in rows])
        for index, logits in zip(owners, found, strict=True):
            ours[index].append(logits.cpu())
    exact = torch.cat([reference_logits(folder, sequence, torch.float32) for sequence in sequences])
    theirs = torch.cat([reference_logits(folder, sequence, torch.bfloat16) for sequence in sequences])
    error = (torch.cat([torch.cat(parts) for parts in ours]) - exact).abs()
    assert error.mean() <= MEAN_ERROR * (theirs - exact).abs().mean()
    assert error.max() <= LARGEST_ERROR * (theirs - exact).abs().max()


@pytest.mark.parametrize("attention", ATTENTION)
def test_memory_does_not_grow(checkpoint: Make, attention: str) -> None:
    runner, limits = start(
        checkpoint(preset="0.6B"), dtype="bfloat16", attention=attention, num_blocks=64, block_size=256
    )
    pool = Pool(limits.num_blocks, limits.block_size)
    tables = [pool.grow([], 1024) for _ in range(16)]

    def steps(count: int) -> None:
        for step in range(count):
            rows = [
                Row(lane, [5], 1 + (37 * lane + step) % 1000, table)
                for lane, table in enumerate(tables[: 1 + step % 16])
            ]
            if step % 10 == 0:
                rows[-1] = Row(rows[-1].lane, [5] * 64, 900, rows[-1].table)
            harness.run(runner, rows, limits)

    steps(200)
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    steps(5000)
    assert torch.cuda.memory_allocated() == allocated
    # Torch may take another segment from the driver where free ones do not fit together, but not one a step.
    assert torch.cuda.memory_reserved() - reserved <= SEGMENTS


def test_executor_is_swapped_under_load(checkpoint: Make, tmp_path: Any) -> None:
    """SIGKILL in the middle of 16 greedy streams; another executor on the same GPU goes on with the same text."""
    folder = checkpoint(preset="0.6B", tokenizer=True, num_layers=2)
    model = ("--model", str(folder))
    options = (*model, "--device", "cuda", "--attention", "triton", "--dtype", "float32", "--max-num-seqs", "32")
    with (
        running_fleet(tmp_path, executors=2, executor_options=options, scheduler_options=model) as fleet,
        Api(ServiceAddress(fleet.spec.url)) as api,
        ThreadPoolExecutor(16) as threads,
    ):
        name = api.model_name(None)
        heard = [0] * 16

        def text(index: int) -> str:
            request = {"model": name, "prompt": f"Line {index}:", "max_tokens": 1000, "temperature": 0}
            parts = []
            for event in api.stream("/v1/completions", {**request, "ignore_eos": True}):
                heard[index] += 1
                parts += [choice["text"] for choice in event["choices"]]
            return "".join(parts)

        undisturbed = list(threads.map(text, range(16)))
        heard[:] = [0] * 16
        streams = [threads.submit(text, index) for index in range(16)]
        eventually(lambda: all(heard))
        assert not any(stream.done() for stream in streams)
        fleet.kill_executor(0)
        start = time.monotonic()
        fleet.start_executor(0)
        assert [stream.result() for stream in streams] == undisturbed
        assert time.monotonic() - start < 60
