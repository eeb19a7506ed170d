"""How many sequences of batches are with the core at once. Pure.

What is open is enough to keep the executors busy, and leaves lanes and memory for requests that come meanwhile: these
go before all lines that wait, and lines that run sit out for their prompts, but what a line holds they cannot take. The
more lines run, the longer are the steps that a new prompt has to wait for, those in flight: so there are few beside
requests (docs/benchmarks.md has what they cost).
"""

from collections import deque

from common.messages import StatusReport

FREE_LANES = 8  # one lane in so many is not for batches
BESIDE_REQUESTS = 64  # batches have one lane in so many while there are requests that somebody waits for
RECENT_S = 10.0  # for so long after the last of these
FREE_BLOCKS = 4  # no line is opened while less than one block in so many is free
REPORTS = 8  # in which all that was on its way to the core at one time has reached it
MOST = 2048  # whatever the executors hold: more would only wait


class LineShare:
    """Follows the core's reports.

    Args:
        now: seconds of any clock.
    """

    def __init__(self, now: float) -> None:
        self._requests_at = now - RECENT_S  # when somebody's request was seen last
        self._reported_at = now
        self._uptime_s = 0.0
        self._foreign: deque[int] = deque(maxlen=REPORTS)

    def open_sequences(self, report: StatusReport, own: int, num_own_over: int, now: float) -> int:
        """How many sequences of batches may be open.

        Args:
            report: of the core.
            own: sequences of batches that are open now: with the core, or on the way to it or from it.
            num_own_over: those that have ended.
            now: when the report came.

        Returns:
            At least 1, so that a service without an executor is seen to want one.
        """
        others = max(report.running + report.waiting - own, 0)
        if self._has_foreign(report, own, num_own_over, now) or others:
            self._requests_at = now
        ready = [executor for executor in report.executors if executor.state == "ready"]
        lanes = sum(executor.max_num_seqs for executor in ready)
        is_alone = now - self._requests_at >= RECENT_S
        share = lanes - -(-lanes // FREE_LANES) if is_alone else lanes // BESIDE_REQUESTS
        share = min(share, lanes - others, MOST)
        num_blocks = sum(executor.num_blocks for executor in ready)
        if sum(executor.free_blocks for executor in ready) * FREE_BLOCKS < num_blocks:
            share = min(share, own)
        return max(share, 1)

    def _has_foreign(self, report: StatusReport, own: int, num_own_over: int, now: float) -> bool:
        """Whether sequences of others have come since the last report, a moment ago, and may be gone again."""
        seen = report.running + report.waiting + report.requests_finished + report.requests_failed
        if report.uptime_s < self._uptime_s:
            self._foreign.clear()  # the scheduler has started anew, and counts from 0
        if now - self._reported_at >= RECENT_S:
            self._foreign.clear()  # no batch ran meanwhile: what has come since may be over for as long
        self._uptime_s, self._reported_at = report.uptime_s, now
        if not self._foreign:
            self._foreign.append(seen - num_own_over)  # as if none of the open ones had reached the core
            return False
        # Own ones on the way to the core are not seen there yet: this number is too low then, never too high.
        foreign = seen - own - num_own_over
        is_new = foreign > max(self._foreign)
        self._foreign.append(foreign)
        return is_new
