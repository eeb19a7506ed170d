"""Which executor is which, over successive status reports; pure.

An epoch is one membership, and a process may have several: it gets a new one after a failed step or a broken
connection, and all get one when the scheduler restarts. What does not change is a process's name and pid. They are no
proof, as a restarted container may have both as before: the caller marks a process that it knows to have left.
"""

from dataclasses import dataclass

from common.messages import ExecutorStatus, StatusReport

_REJOIN_S = 5.0  # an executor that lost its connection, or its scheduler, is back earlier


@dataclass(eq=False)
class ExecutorProcess:
    """One executor process.

    Attributes:
        status: its status in the last report that had it.
        absent_since_s: when the first report without it came; None if the last report has it.
        has_left: it is known to have left: a process with its name and pid is another one.
    """

    status: ExecutorStatus
    absent_since_s: float | None = None
    has_left: bool = False

    @property
    def name(self) -> str:
        """Name that its operator gave it."""
        return self.status.executor

    @property
    def epoch(self) -> int:
        """Its present or last epoch."""
        return self.status.epoch

    @property
    def is_present(self) -> bool:
        """Whether the last report had it."""
        return self.absent_since_s is None

    @property
    def is_ready(self) -> bool:
        """Whether it takes new sequences."""
        return self.is_present and self.status.state == "ready"

    def is_gone(self, now_s: float) -> bool:
        """Whether it will not come back: it is known to have left, or has been away for too long."""
        return self.has_left or (self.absent_since_s is not None and now_s - self.absent_since_s >= _REJOIN_S)

    def may_be(self, other: ExecutorStatus) -> bool:
        """Whether `other`, which has another epoch, can be the same process."""
        return not self.has_left and (self.status.executor, self.status.pid) == (other.executor, other.pid)


class Roster:
    """All executor processes that were ever reported.

    Attributes:
        processes: in the order in which they were first seen.
        num_restarts: restarts of the scheduler that the reports show.
    """

    def __init__(self, report: StatusReport) -> None:
        self.processes = [ExecutorProcess(status) for status in report.executors]
        self.num_restarts = 0
        self._uptime_s = report.uptime_s

    @property
    def num_ready(self) -> int:
        """Processes that take new sequences now."""
        return sum(process.is_ready for process in self.processes)

    def shows_restart(self, report: StatusReport) -> bool:
        """Whether the scheduler has been restarted between the last report and this one."""
        return report.uptime_s < self._uptime_s

    def see(self, report: StatusReport, now_s: float) -> list[ExecutorProcess]:
        """Take in a report that came at the time `now_s`. Returns the processes that are new in it."""
        self.num_restarts += self.shows_restart(report)
        self._uptime_s = report.uptime_s
        epochs = {status.epoch: status for status in report.executors}
        for process in self.processes:
            status = epochs.pop(process.epoch, None)
            if status is not None:
                process.status, process.absent_since_s = status, None
            elif process.absent_since_s is None:
                process.absent_since_s = now_s
        newcomers: list[ExecutorProcess] = []
        for status in epochs.values():
            back = next((known for known in self.processes if not known.is_present and known.may_be(status)), None)
            if back is None:
                newcomers.append(ExecutorProcess(status))
            else:
                back.status, back.absent_since_s = status, None
        self.processes += newcomers
        return newcomers
