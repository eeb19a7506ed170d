"""Fleets as `/page/live` tells them, for a Stage."""

import time

import msgspec

from tests.page.stage import pool_map
from tests.support.status_reports import executor_status, status_report

FREE, CACHED, IN_USE, SHARED = range(4)
MARKUP = "<img src=x onerror=window.ran=1><script>window.ran=1</script>"


def executor(epoch, name=None, **fields):
    """An executor's part of a report."""
    usual = {"executor": name or f"executor-{epoch}", "epoch": epoch, "pid": 100 + epoch, "max_num_seqs": 16}
    return executor_status(**(usual | fields))


def report(executors, **fields):
    """The data of the event `status`."""
    usual = {
        "uptime_s": 3600.0,
        "requests_finished": 1234,
        "prompt_tokens": 9000,
        "output_tokens": 5000,
        "journal": "ok",
    }
    return msgspec.to_builtins(status_report(**(usual | {"executors": executors} | fields)))


def waiting(number, client="", **fields):
    """An entry of the event `waiting`."""
    usual = {"index": 0, "tokens": 120, "output": 0, "priority": 0, "since": time.time() - 3, "reason": "memory"}
    return {"request": f"chatcmpl-w{number}", "client": client} | usual | fields


def running(number, epoch, client=""):
    """An entry of the event `running`."""
    return {"request": f"chatcmpl-r{number}", "index": 0, "client": client, "epoch": epoch, "since": time.time() - 5}


def history(seconds=300):
    """Some minutes in which rates went up and down."""
    now = int(time.time())
    rows = range(seconds)
    return [[now - seconds + i, 40 + 30 * (i % 60) / 60, 200.0 * (i % 20 == 0), 0.6, 3 + i % 4, i % 5] for i in rows]


def blocks(count):
    """States of so many blocks, in about equal parts and of many ages."""
    return [i * 4 // count + 8 * (i % 20) for i in range(count)]


def whole_fleet(num_blocks=2048):
    """Everything that a connection begins with: two executors at work, a queue, and a day with a loss."""
    now = time.time()
    executors = [
        executor(
            7, running=4, num_blocks=num_blocks, free_blocks=num_blocks // 2, steps=1000, step_ms=12.5, uptime_s=3000.0
        ),
        executor(8, state="draining", running=1, num_blocks=num_blocks, uptime_s=60.0),
    ]
    events = [
        {"number": 1, "at": now - 250, "kind": "joined", "executor": "executor-7", "epoch": 7},
        {"number": 2, "at": now - 200, "kind": "lost", "executor": "executor-6", "epoch": 6, "cause": "disconnected",
         "sequences": 3},
        {"number": 3, "at": now - 190, "kind": "joined", "executor": "executor-8", "epoch": 8},
        {"number": 4, "at": now - 20, "kind": "draining", "executor": "executor-8", "epoch": 8},
    ]  # fmt: skip
    return [
        ("status", report(executors, running=5, waiting=3, executors_lost=1, output_tokens_per_s=61.5)),
        ("waiting", [waiting(i, "alice", reason=why) for i, why in enumerate(("memory", "turn", "no_executor"))]),
        ("running", [*(running(i, 7, "bob") for i in range(4)), running(9, 8)]),
        ("events", events),
        ("history", history()),
        ("map", pool_map(7, blocks(num_blocks))),
        ("map", pool_map(8, blocks(num_blocks))),
    ]
