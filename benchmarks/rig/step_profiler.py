"""What the GPU does in a window of steps, from torch's profiler: how much of the time it is busy, and with what."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from common.plan import PlanColumns

MIXED_STEPS = 8
WARM_STEPS = 4  # steps of the window's kind before the window
WAIT_US = 10.0  # a longer gap is a wait for the host; kernels of one CUDA graph follow each other within a few
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
KINDS = ("decode", "mixed")
ARMED = "armed"
_ANOTHER_CLOCK_US = 60e6  # from the median record; a window takes a second
_NAMES_SHOWN = 12
_NAME_LENGTH = 60


def trace_file(kind: str) -> str:
    """Name of a window's file."""
    return f"{kind}.trace.json"


class StepProfiler:
    """Profiles one window of decode steps and one of mixed steps, once the folder has a file `armed`.

    A window holds whole steps: it begins and ends with an idle device, and idle time at its ends does not count.

    Args:
        folder: where `armed` and the traces are.
        num_rows: the least rows of a decode step that is profiled.
        num_steps: decode steps in a window.
    """

    def __init__(self, folder: Path, num_rows: int, num_steps: int) -> None:
        self._folder = folder
        self._num_rows = num_rows
        self._wanted = dict(zip(KINDS, (num_steps, MIXED_STEPS), strict=True))
        self._streak: tuple[str, int] = ("", 0)
        self._left = 0
        self._on_gpu = torch.cuda.is_available()
        self._activity = ProfilerActivity.CUDA if self._on_gpu else ProfilerActivity.CPU
        self._profile: profile | None = None

    def before_launch(self, columns: PlanColumns) -> None:
        """Begin or end a window before a step is launched."""
        kind = self._kind(columns)
        before, length = self._streak
        self._streak = (kind, length + 1 if kind == before else 1)
        if self._profile is not None:
            if kind == before and self._left:
                self._left -= 1
                return
            self._end(before)
        if kind in self._wanted and self._streak[1] == WARM_STEPS and (self._folder / ARMED).exists():
            self._begin(kind)

    def _kind(self, columns: PlanColumns) -> str:
        rows = columns.num_rows
        if not rows == len(columns.token_ids) == len(columns.sample_rows):
            return "mixed"
        return "decode" if rows >= self._num_rows else ""

    def _begin(self, kind: str) -> None:
        self._left = self._wanted[kind] - 1
        self._synchronize()
        self._profile = profile(activities=[self._activity])
        self._profile.start()

    def _end(self, kind: str) -> None:
        assert self._profile is not None
        self._synchronize()
        steps = self._wanted.pop(kind) - self._left
        self._profile.add_metadata_json("baton_steps", str(steps))
        self._profile.stop()
        self._profile.export_chrome_trace(str(self._folder / trace_file(kind)))
        self._profile = None

    def _synchronize(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()


def gpu_figures(trace: Path) -> dict[str, Any] | None:
    """Say what the GPU did in a window; None if there is no trace.

    `kernels_share` is the share of the window in which a kernel or a copy runs. `busy_share` includes gaps of at most
    10 us between two of them: longer gaps are waits for the host. The profiler makes kernels a little slower.

    A trace without a record of the GPU gives an `error` alone. CUPTI stamps the first records of a process's later
    profiles by another clock now and then, some 1e14 ns off (pytorch issue 192021): `of_another_clock` counts those
    that are left out.
    """
    if not trace.exists():
        return None
    content = json.loads(trace.read_text())
    recorded = sorted(
        (float(event["ts"]), float(event["ts"]) + float(event["dur"]), str(event["name"]))
        for event in content["traceEvents"]
        if event.get("cat") in GPU_CATEGORIES
    )
    if not recorded:
        return {"error": f"none of the trace's {len(content['traceEvents'])} events is a record of the GPU"}
    median = recorded[len(recorded) // 2][0]
    work = [record for record in recorded if abs(record[0] - median) < _ANOTHER_CLOCK_US]
    steps = int(content["baton_steps"])
    gaps = []
    end = work[0][1]
    for start, its_end, _ in work[1:]:
        if start > end:
            gaps.append(start - end)
        end = max(end, its_end)
    window_us = end - work[0][0]
    us_of: defaultdict[str, float] = defaultdict(float)
    for start, its_end, name in work:
        us_of[name[:_NAME_LENGTH]] += its_end - start
    longest = sorted(us_of.items(), key=lambda item: -item[1])[:_NAMES_SHOWN]
    return {
        "steps": steps,
        "records": len(work),
        "of_another_clock": len(recorded) - len(work),
        "us_step": round(window_us / steps, 1),
        "busy_share": round(1 - sum(gap for gap in gaps if gap > WAIT_US) / window_us, 4),
        "kernels_share": round(1 - sum(gaps) / window_us, 4),
        "us_longest_gap": round(max(gaps, default=0.0), 1),
        "launches_a_step": round(len(work) / steps, 1),
        "us_a_step": {name: round(us / steps, 2) for name, us in longest},
    }
