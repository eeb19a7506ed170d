"""When the steps of a takeover were seen, by the logs of the services."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.service.swap_times import swap_times, teardowns

DAY = datetime(2026, 11, 27, 23, 59, 59, tzinfo=UTC).timestamp()


def line(after_s: float, service: str, facts: str) -> str:
    at = datetime.fromtimestamp(DAY + after_s, tz=UTC).isoformat().replace("+00:00", "Z")
    return f"time={at} level=info service={service} {facts}\n"


def test_each_signal_has_the_lines_after_it(tmp_path: Path) -> None:
    (tmp_path / "keeper.log").write_text(
        line(0.2, "keeper", 'event="pool leased" executor=executor-0 pool=a lease=1')
        + line(1.4, "keeper", 'event="executor gone" executor=executor-0 pid=7')
        + line(1.5, "keeper", 'event="pool leased" executor=executor-1 pool=a lease=2')
    )
    (tmp_path / "scheduler.log").write_text(
        "a line of something else\n"
        + line(1.1, "scheduler", 'event="executor lost" cause=disconnected reason="connection \\"broke\\""')
        + line(9.1, "scheduler", 'event="executor lost" cause=disconnected')
    )
    (tmp_path / "executor-0.log").write_text(
        line(0.9, "executor", 'event="epoch over" cause=drained') + line(0.3, "executor", "event=joined epoch=1")
    )
    (tmp_path / "executor-1.log").write_text(
        line(1.6, "executor", 'event="holds a pool" lease=2') + line(1.7, "executor", "event=joined epoch=2")
    )
    found = swap_times(tmp_path, [DAY + 1, DAY + 9])
    assert {name: pytest.approx(values, abs=0.1) for name, values in found.items()} == {
        "lost_ms": [100, 100],  # midnight comes between the signal and the line
        "gone_ms": [400],
        "leased_ms": [500],
        "mapped_ms": [600],
        "joined_ms": [700],
    }
    assert teardowns(tmp_path) == pytest.approx([500], abs=0.1)
