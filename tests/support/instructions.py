"""How much work something is, by a measure that is the same on every machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def instructions_of(do: Callable[[], object]) -> int:
    """The bytecode instructions that Python executes for `do`; loops in C (a copy of a dict) are not among them."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks at `settrace` whether any frame wants instructions
    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)
    assert count > 0, "nothing was counted"
    return count
