"""Which executor a waiting sequence is for. Pure."""

from scheduler_svc.core.executor.block_manager import BlockTable
from scheduler_svc.core.executor.executor_state import Worker
from scheduler_svc.core.scheduling.suspects import SUSPICIOUS_STRIKES
from scheduler_svc.core.sequence import Sequence


def place(sequence: Sequence, workers: list[Worker]) -> Worker | None:
    """Where a waiting sequence should run, None if nobody can hold it now.

    One with tokens goes on with the model that computed them, if any executor that stays has it. A suspect (see
    `suspects.py`) goes to another executor than where it failed last, if one can take it. Among those that are left
    it goes where most of its prefix is cached, unless that worker is much busier than another (more than twice its
    sequences, and four) or has just refused somebody for want of memory while another has not; then where fewest run.
    Once chosen it stays (`sequence.placed`), as long as that holds.
    """
    candidates = [w for w in workers if w.takes_new and w.can_hold(sequence)]
    if sequence.num_output > 0:
        candidates = [w for w in candidates if w.model == sequence.model] or candidates
    candidates = [w for w in candidates if w.hot.num_free]
    candidates = [w for w in candidates if not w.closed] or candidates
    if sequence.strikes >= SUSPICIOUS_STRIKES:
        candidates = [w for w in candidates if w.name != sequence.failed_on] or candidates
    if len(candidates) <= 1:
        return candidates[0] if candidates else None
    fewest = min(w.num_running for w in candidates)
    candidates = [w for w in candidates if w.num_running <= 2 * fewest + 4]
    chosen = next((w for w in candidates if w.epoch == sequence.placed), None)
    if chosen is None:
        table, raw = BlockTable(sequence.cache_salt.encode()), sequence.tokens.tobytes()
        hits = {w.epoch: len(w.blocks.match(table, raw)) * w.blocks.block_size for w in candidates}
        chosen = min(candidates, key=lambda w: (-hits[w.epoch], w.num_running, w.epoch))
        sequence.placed = chosen.epoch
    return chosen
