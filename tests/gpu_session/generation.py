"""One tiny generation, compared with transformers: the first thing to know of a GPU that nothing has run on.

    python -m tests.gpu_session.generation FOLDER

A random Qwen3 of four layers with 0.6B's heads. In float32, with Triton's attention, the greedy tokens are those of
transformers on the CPU. In bfloat16, with each attention backend, the logits are about as close to float32's as those
that transformers computes in bfloat16. Prints one JSON line, and exits with 1 if a comparison fails.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch

from tests.executor_svc import harness
from tests.executor_svc.harness import Pool, Row
from tests.support.checkpoints import (
    LARGEST_ERROR,
    MEAN_ERROR,
    VOCAB_SIZE,
    make_checkpoint,
    reference_greedy,
    reference_logits,
)

LENGTHS = (1, 7, 40, 300)
NEW_TOKENS = 16
OPTIONS = {"device": "cuda", "max_num_seqs": 8, "max_batch_tokens": 512, "max_model_len": 1024}


def prompts() -> list[list[int]]:
    """Random tokens."""
    rng = random.Random(0)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]


def greedy(folder: Path) -> dict[str, Any]:
    """Compare greedy tokens in float32: prompts in chunks, then decode steps through CUDA graphs."""
    runner, limits = harness.start(folder, attention="triton", block_size=16, num_blocks=256, **OPTIONS)
    ours = harness.Driver(runner, limits, chunk=100).generate(prompts(), NEW_TOKENS)
    theirs = [reference_greedy(folder, prompt, NEW_TOKENS) for prompt in prompts()]
    pairs = [(mine, their) for row in zip(ours, theirs, strict=True) for mine, their in zip(*row, strict=True)]
    equal = sum(mine == their for mine, their in pairs)
    return {"ok": ours == theirs, "equal_tokens": equal, "tokens": len(pairs), "ours": ours[0], "theirs": theirs[0]}


def logits(folder: Path, attention: str) -> dict[str, Any]:
    """Compare logits in bfloat16: of whole prompts, and of a decode step after them."""
    runner, limits = harness.start(
        folder, attention=attention, dtype="bfloat16", block_size=256, num_blocks=32, **OPTIONS
    )
    pool = Pool(limits.num_blocks, limits.block_size)
    tables = [pool.grow([], len(prompt) + 1) for prompt in prompts()]
    parts: list[list[torch.Tensor]] = []
    for query in (slice(None, -1), slice(-1, None)):
        rows = [
            Row(lane, prompt[query], len(prompt) - (query.start is None), table)
            for lane, (prompt, table) in enumerate(zip(prompts(), tables, strict=True))
            if prompt[query]
        ]
        found = harness.logits(runner, rows, limits).cpu().split([len(row.token_ids) for row in rows])
        parts.append([*[torch.empty(0, VOCAB_SIZE)] * (len(LENGTHS) - len(rows)), *found])
    ours = torch.cat([torch.cat(part) for part in zip(*parts, strict=True)])
    exact, theirs = (
        torch.cat([reference_logits(folder, prompt, dtype) for prompt in prompts()])
        for dtype in (torch.float32, torch.bfloat16)
    )
    error, their_error = (ours - exact).abs(), (theirs - exact).abs()
    mean, largest = float(error.mean() / their_error.mean()), float(error.max() / their_error.max())
    return {
        "ok": mean <= MEAN_ERROR and largest <= LARGEST_ERROR,
        "mean_error_over_theirs": round(mean, 4),
        "largest_error_over_theirs": round(largest, 4),
    }


def main() -> int:
    """The command."""
    scratch = Path(sys.argv[1])
    exact = make_checkpoint(scratch / "tiny-float32")
    rounded = make_checkpoint(scratch / "tiny-bfloat16", dtype=torch.bfloat16)
    found: dict[str, Any] = {}
    checks = {
        "greedy_triton": lambda: greedy(exact),
        "logits_triton": lambda: logits(rounded, "triton"),
        "logits_flash_attn": lambda: logits(rounded, "flash_attn"),
    }
    for name, check in checks.items():
        try:
            found[name] = check()
        except Exception as error:  # the other comparisons are still worth having
            found[name] = {"ok": False, "error": f"{type(error).__name__}: {error}"[:1500]}
    print(json.dumps(found))
    return int(not all(result["ok"] for result in found.values()))


if __name__ == "__main__":
    sys.exit(main())
