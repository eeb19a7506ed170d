"""How much work something is, by a measure that is the same on every machine."""

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


def instructions_of(do: Callable[[], object]) -> int:
    """The bytecode instructions that Python executes for `do`; loops in C (a copy of a dict) are not among them."""
    count = _monitored(do) if sys.version_info >= (3, 12) else _traced(do)
    assert count > 0, "nothing was counted"
    return count


def _traced(do: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)
    return count


def _monitored(do: Callable[[], object]) -> int:
    """A trace of Python 3.13 misses the first call of each function: the second time would cost more."""
    monitoring, tool, this_thread, count = sys.monitoring, sys.monitoring.PROFILER_ID, threading.get_ident(), 0

    def executed(code: object, offset: int) -> None:
        nonlocal count
        count += threading.get_ident() == this_thread

    monitoring.use_tool_id(tool, "instructions_of")
    try:
        monitoring.register_callback(tool, monitoring.events.INSTRUCTION, executed)
        monitoring.set_events(tool, monitoring.events.INSTRUCTION)
        do()
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    return count
