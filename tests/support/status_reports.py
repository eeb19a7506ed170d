"""Status reports for tests that care about some of their fields."""

from typing import Any

from common.messages import ExecutorStatus, StatusReport


def executor_status(**fields: Any) -> ExecutorStatus:
    """One executor's part of a report: an executor that is ready and has done nothing, but for `fields`."""
    usual = {
        "executor": "gpu-a",
        "node": "",
        "epoch": 1,
        "state": "ready",
        "build": "0.1.0",
        "device": "cpu",
        "dtype": "float32",
        "fingerprint": "f",
        "pid": 1,
        "uptime_s": 1.0,
        "num_blocks": 1,
        "block_size": 16,
        "free_blocks": 1,
        "cached_blocks": 0,
        "running": 0,
        "max_num_seqs": 1,
        "steps": 0,
        "step_ms": 0.0,
        "keeps_pool": False,
        "has_standby": False,
    }
    return ExecutorStatus(**(usual | fields))


def status_report(**fields: Any) -> StatusReport:
    """A report of a scheduler that has done nothing and has no executors, but for `fields`."""
    counts = ("waiting", "running", "requests_finished", "requests_failed", "preemptions", "executors_lost")
    totals = ("messages_dropped", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "recomputed_tokens")
    usual: dict[str, Any] = {
        "version": "0.1.0",
        "model": "baton-demo",
        "uptime_s": 1.5,
        "journal": "off",
        "journal_lag_s": 0.0,
        **dict.fromkeys((*counts, *totals, "sequences_resumed", "pools_adopted"), 0),
        "output_tokens_per_s": 0.0,
        "prefill_tokens_per_s": 0.0,
        "executors": [],
        "scale": None,
    }
    return StatusReport(**(usual | fields))
