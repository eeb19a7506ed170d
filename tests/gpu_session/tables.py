"""The tables of docs/gpu.md: what was predicted, what is aimed at, and what the ledger has of each kind of GPU.

Each table stands between two comments of the page and is made anew by `tools/gpu_session.sh keep`; a test holds the
page to the ledger. A figure keeps its place when code changes, until its step has run again: `next` says what is due,
and the table of steps has the dates.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests import ROOT
from tests.gpu_session.ledger import Ledger, Result
from tests.gpu_session.packs import packs

PAGE = ROOT / "docs" / "gpu.md"
CHIPS = ("H100", "H200")

Figures = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A figure.

    Attributes:
        label: in the first column.
        step: whose figures have it.
        read: finds it in them; KeyError, TypeError or IndexError where it is not there.
        predicted: for an H100, before anything had run.
        target: what is aimed at.
    """

    label: str
    step: str
    read: Callable[[Sequence[Figures]], Any]
    predicted: str = ""
    target: str = ""

    def cell(self, ledger: Ledger, chip: str) -> str:
        """The figure of a kind of GPU; empty if it was not measured."""
        result = ledger.latest(self.step, chip)
        if result is None:
            return ""
        if result.outcome != "passed" and not result.figures:
            return result.outcome
        try:
            return str(self.read(result.figures))
        except (KeyError, TypeError, IndexError, StopIteration):
            return result.outcome if result.outcome != "passed" else "not said"


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        name: in the comments around it.
        head: of the first column.
        rows: of the table.
    """

    name: str
    head: str
    rows: Sequence[Row] = field(default_factory=tuple)

    def text(self, ledger: Ledger) -> str:
        """The table in Markdown."""
        head = [[self.head, "predicted, H100", "aimed at", *CHIPS], ["---"] * (3 + len(CHIPS))]
        cells = ([row.cell(ledger, chip) for chip in CHIPS] for row in self.rows)
        rows = [[row.label, row.predicted, row.target, *own] for row, own in zip(self.rows, cells, strict=True)]
        return "\n".join(map(_line, head + rows))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  ", "| ")


def at(*path: str | int, scale: float = 1.0, unit: str = "", digits: int = 0) -> Callable[[Sequence[Figures]], str]:
    """Reads a number by its path in the first line of figures."""

    def read(figures: Sequence[Figures]) -> str:
        value: Any = figures[0]
        for key in path:
            value = value[key]
        return f"{scale * value:,.{digits}f}{unit}"

    return read


def where(
    conditions: Figures, name: str, scale: float = 1.0, unit: str = "", digits: int = 0
) -> Callable[[Sequence[Figures]], str]:
    """Reads a number of the first line of figures that meets the conditions."""

    def read(figures: Sequence[Figures]) -> str:
        line = next(line for line in figures if all(line.get(key) == value for key, value in conditions.items()))
        return f"{scale * line[name]:,.{digits}f}{unit}"

    return read


def _decode(shape: str, name: str, rows: int, predicted: str, floor: str) -> Row:
    label = f"{shape}, {name}, {rows} row{'s' if rows > 1 else ''}"
    target = f"{float(floor) / 0.8:.2f} ms" if shape == "8B" else ""
    read = where({"step": "decode", "rows": rows}, "us", 1e-3, " ms", 2)
    return Row(label, f"steps {shape} {name}", read, f"{predicted} ms (floor {floor})", target)


def _prompt(shape: str, name: str, predicted: str) -> Row:
    read = where({"step": "prompt"}, "us", 1e-3, " ms", 1)
    return Row(f"{shape}, {name}, a prompt of 8,192 tokens", f"steps {shape} {name}", read, predicted)


def _bench(label: str, step: str, *path: str, predicted: str, target: str = "", **form: Any) -> Row:
    return Row(label, f"bench {step}", at(*path, **form), predicted, target)


_PERCENT: Figures = {"scale": 100, "unit": "%", "digits": 1}
BENCH = Table(
    "bench",
    "the nano workload at 0.6B",
    (
        _bench(
            *("output tok/s, Triton", "triton", "service", "tok_s"),
            predicted="16,300 to 17,700",
            target="16,900; H200: 23,800",
        ),
        _bench(
            *("share of the run's floor, Triton", "triton", "roofline", "share"),
            predicted="63 to 68%",
            target="65%",
            **_PERCENT,
        ),
        _bench("output tok/s, flash-attn", "flash_attn", "service", "tok_s", predicted="15,000 to 17,000"),
        _bench(
            *("share of the run's floor, flash-attn", "flash_attn", "roofline", "share"),
            predicted="58 to 65%",
            **_PERCENT,
        ),
        _bench("services over one process", "triton", "split_share", predicted="97 to 99%", target="98%", **_PERCENT),
        _bench(
            *("GPU busy in 100 decode steps of 256 rows", "triton", "gpu", "decode", "busy_share"),
            predicted="97 to 99%",
            target="97%",
            **_PERCENT,
        ),
        _bench(
            *("such a step under the profiler", "triton", "gpu", "decode", "us_step"),
            predicted="9.2 to 9.6 ms",
            scale=1e-3,
            unit=" ms",
            digits=2,
        ),
        _bench(
            *("time in which nothing was launched ahead", "triton", "phases", "decode", "starved_share"),
            predicted="< 3%",
            **_PERCENT,
        ),
    ),
)
STEPS = Table(
    "steps",
    "a decode step of rows with 640 positions",
    (
        *(
            _decode("0.6B", name, rows, predicted, floor)
            for name in ("triton", "flash_attn")
            for rows, predicted, floor in (
                (1, "1.28", "0.42"),
                (16, "1.5", "0.79"),
                (64, "3.0", "1.96"),
                (256, "9.2", "6.66"),
            )
        ),
        _decode("0.6B", "triton-256", 256, "9.2", "6.66"),
        *(
            _decode("8B", name, rows, predicted, floor)
            for name in ("triton", "flash_attn")
            for rows, predicted, floor in (
                (1, "6.5", "5.08"),
                (16, "7.2", "5.55"),
                (64, "9.1", "7.06"),
                (256, "17.0 to 17.5", "13.1"),
            )
        ),
        *(
            _decode("30B-A3B", "triton", rows, predicted, floor)
            for rows, predicted, floor in ((1, "3.8", "2.0"), (16, "15", "13"), (64, "23", "20"))
        ),
        _prompt("0.6B", "triton", "14 to 32 ms"),
        _prompt("8B", "triton", "260 ms"),
        _prompt("8B", "flash_attn", "260 ms"),
    ),
)
_NORM = {"kernel": "add_rms_norm", "tokens": 16_384}
_DECODE = {"kernel": "paged_attention", "phase": "decode"}
_LAYOUT = {"block_size": 16, "layout": "heads first"}  # the executor's own, without flash-attn
_PAGES = {"block_size": 256, "layout": "positions first"}  # flash-attn's
_MANY, _LONG = {"rows": 256, "context": 1024}, {"rows": 32, "context": 8192}


def _share(label: str, conditions: Figures, predicted: str, target: str) -> Row:
    return Row(label, "bench kernels 8B", where(conditions, "of_copy", 100, "%"), predicted, target)


def _us(label: str, conditions: Figures, contestant: str, predicted: str = "", target: str = "") -> Row:
    read = where(conditions, f"us_{contestant}", unit=" µs", digits=1)
    return Row(label, "bench kernels 8B", read, predicted, target)


KERNELS = Table(
    "kernels",
    "kernel, at the shape of 8B",
    (
        _share("`add_rms_norm`, 16,384 tokens: share of the copy rate", _NORM, "85 to 90%", "80%"),
        _share("decode attention, 256 x 1k: share of the copy rate", _DECODE | _LAYOUT | _MANY, "85 to 90%", "90%"),
        _share("the same, 32 x 8k", _DECODE | _LAYOUT | _LONG, "85 to 90%", "90%"),
        _us("256 x 1k", _DECODE | _LAYOUT | _MANY, "ours", "400 to 420 µs"),
        _us("256 x 1k in tiles of 64 positions", _DECODE | _LAYOUT | _MANY, "narrow_64", "0 to 4% more"),
        _us("256 x 1k, cut coarsely", _DECODE | _LAYOUT | _MANY, "coarse", "0 to 3% more"),
        _us("256 x 1k, blocks of 256", _DECODE | _PAGES | _MANY, "ours", "390 to 420 µs"),
        _us("the same by flash-attn", _DECODE | _PAGES | _MANY, "flash_attn", "430 to 480 µs", "slower than ours"),
        *(
            _us(
                f"SwiGLU's first half of {tokens} row{'s' if tokens > 1 else ''}, {way}",
                {"kernel": "linear_silu_and_mul", "tokens": tokens},
                contestant,
                predicted,
            )
            for tokens, way, contestant, predicted in (
                (1, "one kernel", "ours", "73 to 80 µs"),
                (1, "cuBLAS and SiLU", "cublas", "78 to 85 µs"),
                (64, "one kernel", "ours", "75 to 85 µs"),
                (64, "cuBLAS and SiLU", "cublas", "80 to 90 µs"),
            )
        ),
        _us(
            "sampler, 256 rows of 151,936, unfiltered",
            {"kernel": "sample", "rows": 256, "kind": "no filter"},
            "ours",
            "40 µs",
            "60 µs",
        ),
    ),
)
_VMM = {"case": "vmm"}


def _outcome(statement: str) -> Callable[[Sequence[Figures]], str]:
    return lambda figures: next(each["outcome"] for each in figures if each["statement"] == statement)


def _fact(label: str, conditions: Figures, name: str, predicted: str = "", target: str = "") -> Row:
    return Row(label, "kill facts", where(conditions, name, unit=" ms", digits=1), predicted, target)


KEEPER = Table(
    "keeper",
    "what a kill costs, and what the keeper rests on",
    (
        _fact("SIGKILL to a readable pidfd, 1 GB mapped", _VMM | {"gb": 1}, "pidfd_ms", "100 to 200 ms"),
        _fact("the same, 20 GB", _VMM | {"gb": 20}, "pidfd_ms", "200 to 400 ms"),
        _fact("the same, 60 GB", _VMM | {"gb": 60}, "pidfd_ms", "400 to 800 ms", "150 ms"),
        _fact("the same, 20 GB and 4 GB pinned on the host", {"case": "pinned"}, "pidfd_ms", "some 400 ms more"),
        _fact(
            "SIGKILL to the last write that another process sees, 60 GB", _VMM | {"gb": 60}, "last_write_ms", "< 30 ms"
        ),
        _fact("SIGKILL to the end of a socket as a scheduler's, 60 GB", _VMM | {"gb": 60}, "high_socket_ms", "< 30 ms"),
        Row(
            "signs of an end after which the GPU still wrote, 60 GB",
            "kill facts",
            lambda figures: ", ".join(
                next(each["too_early"] for each in figures if (each["case"], each["gb"]) == ("vmm", 60)) or ["none"]
            ),
            "all but low_socket and pidfd",
        ),
        _fact("an heir's first byte after the pidfd, 60 GB", _VMM | {"gb": 60}, "heir_ms", "2 to 20 ms"),
        *(
            Row(f"statement `{name}`", "keeper proof", _outcome(name), predicted, "proven")
            for name, predicted in (
                ("outlives", "proven"),
                ("freed", "proven"),
                ("silent", "proven (90%)"),
                ("guarded", "proven"),
                ("remapped", "proven"),
            )
        ),
    ),
)


def _swap(label: str, setting: str, name: str, predicted: str, target: str = "") -> Row:
    return Row(label, f"swap {setting}", where({"setting": setting}, name, unit=" ms"), predicted, target)


FAILOVER = Table(
    "failover",
    "16 streams of 0.6B over a pool of 40 GiB, medians",
    (
        _swap("gap of a stream: SIGKILL, a standby waits", "standby", "gap_ms_p50", "300 to 900 ms", "150 ms"),
        _swap("SIGKILL to the end of the executor's connection", "standby", "lost_ms_p50", "< 30 ms"),
        _swap("SIGKILL to its readable pidfd", "standby", "gone_ms_p50", "250 to 800 ms"),
        _swap("SIGKILL to the standby's lease", "standby", "leased_ms_p50", "the same"),
        _swap("SIGKILL to the standby's Welcome", "standby", "joined_ms_p50", "some 30 ms more"),
        _swap("gap of a stream: told to leave, a standby waits", "rollout", "gap_ms_p50", "30 to 100 ms", "150 ms"),
        _swap("gap of a stream: SIGKILL, a new process finds the memory", "keeper", "gap_ms_p50", "8 to 15 s"),
        _swap("gap of a stream: SIGKILL, no keeper", "alone", "gap_ms_p50", "8 to 15 s"),
    ),
)
TABLES = (BENCH, STEPS, KERNELS, KEEPER, FAILOVER)


def steps_read() -> set[str]:
    """Names of the steps that some table reads."""
    return {row.step for table in TABLES for row in table.rows}


def filled_cells(results: Iterable[Result]) -> Iterator[str]:
    """What results would put into the tables: a line for each row that reads one of them."""
    ledger = Ledger(results)
    for table in TABLES:
        for row in table.rows:
            if (chip := next((each.chip for each in ledger if each.step == row.step), None)) is not None:
                yield f"table {table.name}, {row.label}: {row.cell(ledger, chip)}"


def values_table(ledger: Ledger) -> str:
    """What has run on a GPU and when, item by item."""
    lines = [["step", "pack", "ran on", "tests"], ["---"] * 4]
    for pack, steps in packs().items():
        for item in (item for step in steps for item in step.parts):
            results = [found for chip in ledger.chips() if (found := ledger.latest(item.name, chip)) is not None]
            told = "; ".join(f"{result.chip} {result.began[:10]}{_unless_passed(result)}" for result in results)
            lines.append([f"`{item.name}`", pack, told, _num_tests(results)])
    return "\n".join(map(_line, lines))


def _unless_passed(result: Result) -> str:
    return "" if result.outcome == "passed" else f" ({result.outcome})"


def _num_tests(results: Sequence[Result]) -> str:
    counts = [line for result in results for line in result.figures if isinstance(line, dict) and "collected" in line]
    return f"{counts[-1]['passed']} of {counts[-1]['collected']}" if counts else ""


def render(page: str, ledger: Ledger) -> str:
    """The page with its tables made anew.

    Raises:
        ValueError: a table has no place on the page.
    """
    texts = {table.name: table.text(ledger) for table in TABLES} | {"values": values_table(ledger)}
    for name, text in texts.items():
        place = re.compile(rf"(<!-- ledger: {name} -->\n)(?:.*?\n)??(<!-- end -->)", re.DOTALL)
        page, count = place.subn(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)
        if count != 1:
            raise ValueError(f"the page has {count} places for the table {name}, and not one")
    return page
