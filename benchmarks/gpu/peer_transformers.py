"""transformers' continuous batching on bench_gpu.py's workload; prints one JSON line. Started by bench_gpu.py.

    python -m benchmarks.gpu.peer_transformers MODEL_FOLDER --repeats 3

transformers chooses attention, pages and CUDA graphs itself. The prefix cache is off, because the runs have the same
prompts. On a CPU the size of the KV cache is set, too: by default the cache takes all memory. Outputs are read from
transformers' queue when requests end. Written against 5.17 and 5.23.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch
import transformers

from benchmarks.rig.runs import TimedRun, rates
from benchmarks.rig.service_load import LARGEST_BLOCK, TEMPERATURE, make_requests, pool_positions, with_outputs
from benchmarks.rig.workloads import WorkloadRequest

NO_TOKEN = -1  # an end token that no sequence draws
WARM_UP_TOKENS = 16
RESULT_TIMEOUT_S = 1.0
CPU_BATCH_TOKENS = 2048


def run(manager: Any, requests: Sequence[WorkloadRequest]) -> TimedRun:
    """Run all requests to their ends.

    Raises:
        RuntimeError: a request or the manager ended early.
    """
    left = {}
    start_s = time.monotonic()
    for request in requests:
        name = manager.add_request(
            request.prompt.tolist(), max_new_tokens=request.num_output, eos_token_id=NO_TOKEN, streaming=False
        )
        left[name] = request.num_output
    num_tokens = sum(left.values())
    while left:
        result = manager.get_result(timeout=RESULT_TIMEOUT_S)
        if result is None and not manager.is_running():
            raise RuntimeError(f"the manager ended with {len(left)} requests open")
        if result is None or not result.is_finished():
            continue
        wanted, got = left.pop(result.request_id), len(result.generated_tokens)
        if result.error is not None or got != wanted:
            raise RuntimeError(f"{result.request_id} gave {got} of {wanted} tokens: {result.error}")
    return TimedRun(start_s, time.monotonic(), num_tokens)


def measure(folder: Path, requests: Sequence[WorkloadRequest], repeats: int, device: str) -> dict[str, Any]:
    """Run the warm-up and the repeats; the figures."""
    from transformers.generation.configuration_utils import (  # noqa: PLC0415  (imports half of torch's compiler)
        ContinuousBatchingConfig,
        GenerationConfig,
    )
    from transformers.generation.continuous_batching.utils import WorkloadHints  # noqa: PLC0415  (likewise)

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    model = model.to(device).eval()
    hints = WorkloadHints(
        max_prompt_length=max(len(request.prompt) for request in requests),
        max_generated_length=max(request.num_output for request in requests),
        num_requests=len(requests),
    )
    config: Any = ContinuousBatchingConfig(allow_block_sharing=False)
    if device == "cpu":
        config.num_blocks, config.max_batch_tokens = pool_positions(requests) // LARGEST_BLOCK, CPU_BATCH_TOKENS
    sampling: dict[str, Any] = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0, "top_p": 1.0}
    with model.continuous_batching_context_manager(
        generation_config=GenerationConfig(**sampling, eos_token_id=NO_TOKEN),  # type: ignore[no-untyped-call]
        continuous_batching_config=config,
        workload_hints=hints,
    ) as manager:
        run(manager, with_outputs(requests, WARM_UP_TOKENS))
        runs = [run(manager, requests) for _ in range(repeats)]
        used = manager.continuous_batching_config
        # The manager chooses it (`paged|flash_attention_2`, say) and puts the model's own, `sdpa`, back when it stops.
        attention = model.config._attn_implementation
    return {
        "transformers": transformers.__version__,
        "attention": attention,
        "cuda_graphs": used.use_cuda_graph,
        "async_batching": used.use_async_batching,
        **rates(runs),
    }


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--num-seqs", default=256)
@click.option("--max-tokens", type=int)
@click.option("--repeats", default=1)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
def main(folder: Path, num_seqs: int, max_tokens: int | None, repeats: int, device: str) -> None:
    """Measure the model in FOLDER."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    figures = measure(folder, make_requests(num_seqs, max_tokens), repeats, device)
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
