"""An executor process around a runner that computes nothing: what it does is in a plan's first token.

Tokens 101 and 102 raise, 103 takes two seconds, as on a CPU. On the way back from a device, after the launch, 104
raises and 105 waits until a plan with token 106 has been launched. Of 107, the device is lost. Otherwise each sampled
row's token is its context length.

    python -m tests.executor_svc.puppet ENDPOINT [FOLDER]     # of its keys
"""

import queue
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common import messages as m
from common.curve import ClientCurve
from common.logging import get_logger, setup_logging
from common.plan import ExecutorLimits, PlanColumns
from common.step_result import ResultColumns
from executor_svc.service.health_file import HealthFile
from executor_svc.service.process import serve
from executor_svc.service.scheduler_address import SchedulerAddress

LIMITS = ExecutorLimits(
    num_blocks=64, block_size=4, max_num_seqs=8, max_batch_tokens=64, max_model_len=100, vocab_size=128, hidden_size=4
)
HELLO = m.Hello(
    executor="puppet",
    build="0",
    fingerprint="f",
    dtype="float32",
    device="cpu",
    pid=1,
    tokenizer="",
    grammars="",
    start_s=1.0,
    pool=None,
    node="",
    **vars(LIMITS),
)
SLOW_STEP_S = 2.0
IN_SLOW_STEP = "in the slow step"

log = get_logger("executor")


@dataclass
class PuppetTokens:
    """Looks like a PendingStep to the server."""

    first: int
    tokens: np.ndarray
    overtaken: threading.Event
    unanswered: queue.SimpleQueue

    def wait(self) -> ResultColumns:
        if self.first == 104:
            raise RuntimeError("a kernel failed after its launch")
        if self.first == 105:
            assert self.overtaken.wait(10)
        self.unanswered.get()
        return ResultColumns.of_tokens(self.tokens)


class PuppetRunner:
    """Looks like a Runner to the server."""

    limits = LIMITS

    def __init__(self) -> None:
        self.overtaken = threading.Event()
        self.lost = False
        self.unanswered: queue.SimpleQueue[int] = queue.SimpleQueue()

    def launch(self, columns: PlanColumns) -> PuppetTokens:
        """Do as the plan's first token says."""
        first = int(columns.token_ids[0])
        self.unanswered.put(first)
        if first == 106:
            self.overtaken.set()
        if first == 107:
            self.lost = True
            raise RuntimeError("an illegal memory access was encountered")
        if first == 101:
            raise MemoryError("no memory for this step")
        if first == 102:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] " + "x" * 9000)
        if first == 103:
            print(IN_SLOW_STEP, flush=True)
            time.sleep(SLOW_STEP_S)
        return PuppetTokens(first, columns.context_lens[columns.sample_rows], self.overtaken, self.unanswered)

    def usable(self) -> bool:
        return not self.lost


if __name__ == "__main__":
    setup_logging("executor")
    runner = PuppetRunner()
    curve = ClientCurve.load(Path(sys.argv[2])) if sys.argv[2:] else None
    address = SchedulerAddress(sys.argv[1])
    exit_code = serve(runner, HELLO, address, HealthFile(None), curve)  # type: ignore[arg-type]
    log.info("has served", unanswered=runner.unanswered.qsize(), threads=threading.active_count())
    sys.exit(exit_code)
