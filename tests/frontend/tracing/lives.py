"""What a core tells of a request's life, and a script that takes longer than it."""

from collections.abc import Iterator

from common import messages as m
from tests.support.fake_core import Step, echo


def life(now: float, *, index: int = 0, cause: str = "length") -> m.SequenceLife:
    """One that began 30 ms ago."""
    where = {"executor": "gpu-0", "epoch": 7}
    marks = [
        m.Mark(at=now - 0.030, what="queued", tokens=3),
        m.Mark(at=now - 0.025, what="admitted", tokens=3, cached=2, **where),
        m.Mark(at=now - 0.025, what="prefill", tokens=1, **where),
        m.Mark(at=now - 0.020, what="first_token", **where),
        m.Mark(at=now - 0.015, what="lost", cause="timeout", **where),
        m.Mark(at=now - 0.010, what="admitted", tokens=5, **where),
        m.Mark(at=now - 0.008, what="resumed", **where),
        m.Mark(at=now - 0.005, what="ended", tokens=4, cause=cause, **where),
    ]
    return m.SequenceLife(index=index, marks=marks, num_left_out=0, output=4)


def slow_echo(submit: m.Submit) -> Iterator[Step]:
    """Takes longer than `life`."""
    yield 0.15
    yield from echo(submit)
