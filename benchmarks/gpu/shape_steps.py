"""Time decode and prompt steps of a Qwen3 shape whose random weights are drawn on the device: no checkpoint is written.

    python benchmarks gpu.shape_steps 8B --rows 1,16,64,256 --context 640
    python benchmarks gpu.shape_steps tiny --device cpu --steps 3 --prefill 64

The runner is that of an executor, with its graphs; plans go to it directly, two in flight, as a scheduler sends them.
Prints one JSON line when it has started, one for each number of rows, and one for a prompt: `us` a step, `host_us` of a
launch (median), and `least_us` by the roofline of `rig/roofline.py`. `--undrawn` leaves the weights as the memory was:
where a GPU is only pretended, drawing them would fill the host's memory.
"""

import json
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from benchmarks.rig.ceilings import Ceilings, measure_gpu_ceilings
from benchmarks.rig.checkpoints import DTYPE, INITIALIZER_RANGE, SHAPES
from benchmarks.rig.roofline import WorkModel, least_time
from benchmarks.rig.service_load import TEMPERATURE
from benchmarks.rig.step_records import Recorder
from common.logging import setup_logging
from common.plan import ExecutorLimits, PlanColumns
from common.sampling_columns import SamplingColumns
from executor_svc.devices.choose_platform import choose_platform
from executor_svc.model.attention import KVGeometry
from executor_svc.model.config import DecoderConfig
from executor_svc.model.families import read_config
from executor_svc.model.kept_weights import LoadedWeights
from executor_svc.model.prepared import WeightLayout, Weights
from executor_svc.model.rank_group import SINGLE_RANK
from executor_svc.model.sharding import Shard
from executor_svc.options import ExecutorOptions
from executor_svc.runner.runner import Runner
from executor_svc.runner.trial_plans import trial_plan
from executor_svc.startup import LoadedModel, make_runner

CEILINGS_BUDGET_S = 0.3
WARM_STEPS = 3
LARGEST_BLOCK = 256


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        rows: of the decode steps.
        context: positions that each of their rows sees.
        prefill: tokens of the prompt; 0 for none.
        most_rows: of the executor: graphs are captured up to so many.
    """

    rows: tuple[int, ...]
    context: int
    prefill: int
    most_rows: int

    def limits(self, config: DecoderConfig, block_size: int) -> ExecutorLimits:
        """Limits of an executor whose pool holds each of these steps."""
        longest = max(self.context, self.prefill)
        return ExecutorLimits(
            num_blocks=max(self.most_rows * -(-self.context // block_size), -(-longest // block_size)),
            block_size=block_size,
            max_num_seqs=self.most_rows,
            max_batch_tokens=max(self.prefill, self.most_rows, LARGEST_BLOCK),
            max_model_len=max(longest, 4096),
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
        )


def draw_weights(layout: WeightLayout, device: torch.device, drawn: bool) -> LoadedWeights:
    """Random weights like those of `rig/checkpoints.py`, made where they are used."""
    generator = torch.Generator(device).manual_seed(0)
    tensors = {}
    for name, spec in layout.specs.items():
        tensors[name] = torch.empty(spec.shape, dtype=spec.dtype, device=device)
        if drawn:
            tensors[name].normal_(1.0 if "norm" in name else 0.0, INITIALIZER_RANGE, generator=generator)
    return LoadedWeights(Weights(layout, tensors), fingerprint="0" * 32)


def start(config: DecoderConfig, options: ExecutorOptions, sizes: Sizes, drawn: bool) -> Runner[Any]:
    """Start a runner as an executor does, without a checkpoint and without services."""
    platform = choose_platform(options)
    layout = WeightLayout(config, Shard.of(config), DTYPE, platform.packing(config, DTYPE))
    weights = draw_weights(layout, platform.device, drawn)
    model = LoadedModel(weights, "bfloat16", ("generate",), tokenizer="", grammars=None)
    block_size = platform.block_size(config, DTYPE, options.block_size)
    geometry = KVGeometry(config.num_layers, config.num_kv_heads, config.head_dim, block_size, DTYPE)
    runner = make_runner(platform, model, geometry, sizes.limits(config, block_size), SINGLE_RANK)
    runner.warm_up()
    return runner


def make_plan(limits: ExecutorLimits, rows: int, queries: int, context: int) -> PlanColumns:
    """A step of rows with blocks of their own, sampled as the nano workload is; decode rows read their lanes."""
    columns = trial_plan([queries] * rows, limits.block_size, context - queries)
    blocks = np.arange(int(columns.block_counts.sum()), dtype=np.int32)
    first_block = np.repeat(np.cumsum(columns.block_counts) - columns.block_counts, columns.query_lens)
    places = first_block * limits.block_size + columns.positions
    sampling = replace(
        SamplingColumns.greedy(rows),
        temperatures=np.full(rows, TEMPERATURE, np.float32),
        seeds=np.arange(rows, dtype=np.uint64),
    )
    tokens = np.full(rows * queries, -1 if queries == 1 else 5, np.int32)
    return replace(columns, block_ids=blocks, slot_mapping=places.astype(np.int32), sampling=sampling, token_ids=tokens)


def time_steps(
    runner: Runner[Any], columns: PlanColumns, steps: int, synchronize: Callable[[], None]
) -> tuple[float, float]:
    """Seconds of a step with two in flight, and the median seconds of its launch on the host."""
    for _ in range(WARM_STEPS):
        runner.run(columns)
    synchronize()
    in_flight = deque([runner.launch(columns), runner.launch(columns)])
    host_s = []
    start_s = time.perf_counter()
    for _ in range(steps):
        began_s = time.perf_counter()
        in_flight.append(runner.launch(columns))
        host_s.append(time.perf_counter() - began_s)
        in_flight.popleft().wait()
    taken_s = time.perf_counter() - start_s
    while in_flight:
        in_flight.popleft().wait()
    return taken_s / steps, statistics.median(host_s)


def least_us(work: WorkModel, columns: PlanColumns, ceilings: Ceilings | None) -> float | None:
    """Microseconds that the step takes at least; None without ceilings."""
    if ceilings is None:
        return None
    return round(1e6 * least_time([work.work(Recorder().launching(columns))], ceilings, 1), 1)


@click.command(context_settings={"show_default": True})
@click.argument("shape", type=click.Choice(list(SHAPES)))
@click.option("--rows", default="1,16,64,256", help="Of the decode steps.")
@click.option("--context", default=640, type=click.IntRange(1), help="Positions that each row sees.")
@click.option("--prefill", default=8192, type=click.IntRange(0), help="Tokens of the prompt step, 0 for none.")
@click.option("--max-rows", default=256, type=click.IntRange(1), help="Of the executor; graphs are captured up to it.")
@click.option("--steps", default=60, type=click.IntRange(1), help="Decode steps; a tenth of it are prompt steps.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cuda")
@click.option("--attention", type=click.Choice(["flash_attn", "triton"]), default="triton")
@click.option("--block-size", type=click.IntRange(1), help="Positions in a KV block.  [default: the executor's]")
@click.option("--undrawn", is_flag=True, help="Leave the weights as the memory was.")
def main(
    shape: str,
    rows: str,
    context: int,
    prefill: int,
    max_rows: int,
    steps: int,
    device: str,
    attention: str,
    block_size: int | None,
    undrawn: bool,
) -> None:
    """Print how long steps of SHAPE take."""
    setup_logging("bench", "info")
    on_gpu, began_s = device == "cuda", time.monotonic()
    sizes = Sizes(tuple(min(int(each), max_rows) for each in rows.split(",")), context, prefill, max_rows)
    ceilings = None
    if on_gpu:
        ceilings = measure_gpu_ceilings(torch.device(device), CEILINGS_BUDGET_S)
        torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(SHAPES[shape].config()))
        config = read_config(Path(folder))
    work = WorkModel(config, DTYPE.itemsize)
    options = ExecutorOptions(model=None, device=device, attention=attention, block_size=block_size)
    runner = start(config, options, sizes, drawn=not undrawn)
    about = {
        "shape": shape,
        "attention": attention if on_gpu else "cpu",
        "block_size": runner.limits.block_size,
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
    }
    started = {
        "started_s": round(time.monotonic() - began_s, 1),
        "kv_gib": round(runner.limits.num_blocks * runner.limits.block_size * work.kv_bytes_a_token / 2**30, 2),
        "copy_tb_s": None if ceilings is None else round(ceilings.copy / 1e12, 3),
        "matmul_tflop_s": None if ceilings is None else round(ceilings.matmul / 1e12, 1),
    }
    print(json.dumps(about | started), flush=True)
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    measured = [("decode", number, 1, context, steps) for number in sizes.rows]
    measured += [("prompt", 1, prefill, prefill, max(3, steps // 10))] if prefill else []
    for kind, number, queries, seen, count in measured:
        columns = make_plan(runner.limits, number, queries, seen)
        step_s, host_s = time_steps(runner, columns, count, synchronize)
        floor_us = least_us(work, columns, ceilings)
        figures = {
            "step": kind,
            "rows": number,
            "context": seen,
            "us": round(1e6 * step_s, 1),
            "host_us": round(1e6 * host_s, 1),
            "least_us": floor_us,
            "share": None if floor_us is None else round(floor_us / (1e6 * step_s), 3),
        }
        print(json.dumps(about | figures), flush=True)
    runner.close()


if __name__ == "__main__":
    main()
