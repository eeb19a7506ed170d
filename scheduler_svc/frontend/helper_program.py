"""The program of a helper process (`helper_process.py` is the frontend's side), apart from all that a frontend imports.

It writes no log, so it needs nothing that loggers import: a process starts in half the time, also while a chat waits.
"""

import os
import resource
import sys
from collections.abc import Callable

from common.parent_death import killed_with

Answer = Callable[[bytes], bytes]


def answer_questions(prepare: Callable[[bytes], tuple[Answer, bytes]], *, address_space: int) -> None:
    """Read and answer until the frontend closes stdin or ends: all that the process does.

    Args:
        prepare: takes the settings, and gives what answers questions, and the answer to the settings.
        address_space: bytes that it may have.
    """
    if (die_with_parent := killed_with(int(sys.argv[1]))) is not None:
        die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = address_space if hard == resource.RLIM_INFINITY else min(address_space, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    answers, questions = os.dup(1), sys.stdin.buffer
    answer, ready = prepare(questions.readline())
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)  # what libraries print here quotes clients, who could fill our log with it
    write_line(answers, ready)
    for question in questions:
        write_line(answers, answer(question))


def write_line(fd: int, line: bytes) -> None:
    """Write all of it, and a line end."""
    rest = memoryview(line + b"\n")
    while rest:
        rest = rest[os.write(fd, rest) :]  # a pipe takes a part of what is long
