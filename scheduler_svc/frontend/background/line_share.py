"""How many sequences of batches are with the core at once. Pure.

What is open is enough to keep the executors busy, and leaves lanes and memory for requests that come meanwhile: these
go before all lines that wait, but they cannot take what a line holds already.
"""

from common.messages import StatusReport

FREE_LANES = 8  # one lane in so many is not for batches
BESIDE_REQUESTS = 4  # batches have one lane in so many while requests run that somebody waits for
FREE_BLOCKS = 4  # no line is opened while less than one block in so many is free
MOST = 2048  # whatever the executors hold: more would only wait


def open_sequences(report: StatusReport, own: int) -> int:
    """How many sequences of batches may be open, as the core describes itself.

    Args:
        own: sequences of batches that are open now.

    Returns:
        At least 1, so that a service without an executor is seen to want one.
    """
    ready = [executor for executor in report.executors if executor.state == "ready"]
    lanes = sum(executor.max_num_seqs for executor in ready)
    others = max(report.running + report.waiting - own, 0)
    share = lanes // BESIDE_REQUESTS if others else lanes - -(-lanes // FREE_LANES)
    share = min(share, lanes - others, MOST)
    num_blocks = sum(executor.num_blocks for executor in ready)
    if sum(executor.free_blocks for executor in ready) * FREE_BLOCKS < num_blocks:
        share = min(share, own)
    return max(share, 1)
