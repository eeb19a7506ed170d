"""An executor process around a runner that computes nothing: what it does is in a plan's first token.

Tokens 101 and 102 raise, 103 takes two seconds; otherwise each sampled row's token is its context length.
"""

import sys
import time

import numpy as np

from common import messages as m
from common.logging import setup_logging
from common.plan import ExecutorLimits, PlanColumns
from executor_svc.health_file import HealthFile
from executor_svc.server import serve

LIMITS = ExecutorLimits(
    num_blocks=64, block_size=4, max_num_seqs=8, max_batch_tokens=64, max_model_len=100, vocab_size=128
)
HELLO = m.Hello(executor="puppet", build="0", fingerprint="f", dtype="float32", device="cpu", pid=1, **vars(LIMITS))
SLOW_STEP_S = 2.0


class PuppetRunner:
    """Looks like a Runner to the server."""

    limits = LIMITS

    def run(self, columns: PlanColumns) -> np.ndarray:
        """Do as the plan's first token says."""
        first = columns.token_ids[0]
        if first == 101:
            raise MemoryError("no memory for this step")
        if first == 102:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] " + "x" * 9000)
        if first == 103:
            time.sleep(SLOW_STEP_S)
        return columns.context_lens[columns.sample_rows]


if __name__ == "__main__":
    setup_logging("executor")
    sys.exit(serve(PuppetRunner(), HELLO, sys.argv[1], HealthFile(None)))  # type: ignore[arg-type]
