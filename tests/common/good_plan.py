"""A plan that an executor takes, with its limits: tests change parts of it."""

from array import array

from common import messages as m
from common.plan import ExecutorLimits

LIMITS = ExecutorLimits(
    num_blocks=8, block_size=4, max_num_seqs=4, max_batch_tokens=16, max_model_len=20, vocab_size=10, hidden_size=4
)


def ints(*values):
    return array("i", values).tobytes()


def floats(*values):
    return array("f", values).tobytes()


#: Two rows: a decode at position 4 whose token is in lane 3, and a prompt of three tokens.
PLAN = m.Plan(
    epoch=1,
    step=0,
    lanes=ints(3, 0),
    query_lens=ints(1, 3),
    context_lens=ints(5, 3),
    token_ids=ints(-1, 7, 8, 9),
    slot_mapping=ints(6 * 4 + 0, 1 * 4 + 0, 1 * 4 + 1, 1 * 4 + 2),
    block_counts=ints(2, 1),
    block_ids=ints(2, 6, 1),
    sample_rows=ints(0, 1),
    temperatures=floats(0.0, 0.8),
    top_ks=ints(0, 5),
    top_ps=floats(1.0, 0.9),
    min_ps=floats(0.0, 0.1),
    seeds=array("Q", [1, 2**64 - 1]).tobytes(),
)
