"""What an executor says about itself, for tests that need a Hello."""

from typing import Any

from common import messages as m
from common.plan import ExecutorLimits

LIMITS = ExecutorLimits(
    num_blocks=64, block_size=4, max_num_seqs=16, max_batch_tokens=64, max_model_len=200, vocab_size=1000, hidden_size=4
)


def hello(name: str = "fake", limits: ExecutorLimits = LIMITS, **changes: Any) -> m.Hello:
    """A Hello of these limits."""
    fields = dict(vars(limits), executor=name, build="test", fingerprint="f00d", dtype="float32", device="cpu", pid=1)
    fields |= {"tokenizer": "", "grammars": "", "start_s": 1.0, "pool": None, "node": ""}
    return m.Hello(**(fields | changes))
