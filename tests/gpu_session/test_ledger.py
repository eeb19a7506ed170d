"""The ledger: what stays of a session, what is due, and that no rehearsal passes for a GPU."""

import subprocess
import sys

import msgspec
import pytest

from tests import ROOT
from tests.gpu_session import __main__ as command
from tests.gpu_session import tables
from tests.gpu_session.ledger import LEDGER, Ledger, Result, read_results
from tests.gpu_session.machine import expected_versions
from tests.gpu_session.packs import Item, Step, packs
from tests.gpu_session.session import RESULTS

H100, H200 = "NVIDIA H100 80GB HBM3, 580.159.04", "NVIDIA H200, 580.159.04"


def result(**fields):
    given = {"step": "generation", "pack": "values", "key": "k", "outcome": "passed", "gpu": H100, "seconds": 1.0}
    return Result(**{**given, "began": "2026-11-27T10:00:00+00:00", **fields})


def later(**fields):
    return result(began="2026-12-01T10:00:00+00:00", **fields)


def test_the_newest_result_of_each_kind_of_gpu_stays(tmp_path):
    ledger = Ledger()
    assert ledger.enter(result())
    assert not ledger.enter(result()), "nothing new"
    assert ledger.enter(result(gpu=H200, figures=[{"tok_s": 1}]))
    assert ledger.enter(later(outcome="failed", said="x" * 9999))
    assert not ledger.enter(result(figures=[{"tok_s": 2}])), "it is older"
    assert ledger.chips() == ["H100", "H200"]
    assert len(ledger.latest("generation", "H100").said) < 2000
    assert ledger.passed_keys("generation") == {"k"}, "it has passed on the other one"
    ledger.save(tmp_path / "ledger")
    again = Ledger(read_results(tmp_path / "ledger"))
    assert list(again) == list(ledger)
    assert len((tmp_path / "ledger").read_text().splitlines()) == 2


def test_what_says_nothing_replaces_nothing():
    ledger = Ledger([result()])
    assert not ledger.enter(later(outcome="skipped"))
    assert not ledger.enter(later(outcome="timed out"))
    assert ledger.enter(later(outcome="timed out", key="of changed code"))


def test_no_rehearsal_is_entered():
    with pytest.raises(ValueError, match="rehearsal"):
        Ledger().enter(result(rehearsal=True))


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    path = tmp_path / "results"
    path.write_bytes(msgspec.json.encode(result()) + b"\n" + msgspec.json.encode(later())[:40])
    assert read_results(path) == [result()]
    assert read_results(tmp_path / "missing") == []


def test_a_step_is_due_when_its_code_its_command_or_a_version_changes():
    item = Item("generation", ("tests.gpu_session.carried",))
    step = Step("generation", ("{python}", "-m", "x"), 1.0, 10.0, code=item.code)
    key = step.key(item, {"torch": "2.11.0"})
    assert key == step.key(item, {"torch": "2.11.0"})
    assert key != step.key(item, {"torch": "2.12.0"})
    assert key != Step("generation", ("{python}", "-m", "y"), 1.0, 10.0, code=item.code).key(item, {"torch": "2.11.0"})
    other = Item("generation", ("tests.gpu_session.ledger",))
    assert key != step.key(other, {"torch": "2.11.0"})
    assert command.passed([step], Ledger([result(key=key)]), {"torch": "2.11.0"}) == {"generation": key}
    assert command.passed([step], Ledger([result(key=key, outcome="failed")]), {"torch": "2.11.0"}) == {}
    assert command.passed([step], Ledger([result(key=key)]), {"torch": "2.12.0"}) == {}


@pytest.mark.parametrize(
    ("command", "moved"),
    [
        (("{python}", "-m", "benchmarks.gpu.shape_steps", "8B"), ("{python}", "-m", "benchmarks.shapes", "8B")),
        (("{python}", "benchmarks/bench_gpu.py"), ("{python}", "benchmarks/gpu/bench_gpu.py")),
        (("sh", "-c", "python -m tools.one >&2"), ("sh", "-c", "python -m tests.gpu_session.one >&2")),
    ],
)
def test_a_move_of_what_a_command_names_makes_no_step_due(command, moved):
    one, other, different = (Step("x", each, 1.0, 10.0) for each in (command, moved, (*command, "9")))
    assert one.key(one.parts[0], {}) == other.key(other.parts[0], {}) != different.key(different.parts[0], {})


def test_what_a_table_reads_is_measured_on_each_kind_of_gpu():
    """Values that are right on one kind count for all."""
    steps = [Step(name, ("x",), 1.0, 10.0) for name in ("steps 0.6B triton", "generation")]
    keys = {step.name: step.key(step.parts[0], {}) for step in steps}
    ledger = Ledger([result(step=name, key=key) for name, key in keys.items()])
    assert command.passed(steps, ledger, {}) == command.passed(steps, ledger, {}, "H100") == keys
    assert set(command.passed(steps, ledger, {}, "H200")) == {"generation"}


def test_the_code_of_a_swap_counts_with_its_messages():
    """And that of what only computes does not."""
    items = {item.name: item for pack in packs().values() for step in pack for item in step.parts}
    assert {"executor_svc.__main__", "keeper_svc.server"} <= set(items["swap rollout"].code)
    assert "common" not in items["swap rollout"].left_out


def test_a_change_of_a_service_makes_no_kernel_due():
    """Nor does one of a kernel make the keeper's facts due."""
    steps = {item.name: item for pack in packs().values() for step in pack for item in step.parts}
    norm, facts = steps["tests of norm"], steps["kill facts"]
    assert not any(name.startswith(("scheduler_svc", "keeper_svc")) for name in norm.code)
    assert {"scheduler_svc", "common"} <= set(norm.left_out)
    assert "keeper_svc" not in facts.left_out


# --- the commands ---


def call(*arguments):
    line = [sys.executable, "-m", "tests.gpu_session", *map(str, arguments)]
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=60, cwd=ROOT)


@pytest.fixture
def places(tmp_path):
    """A folder that came back, a ledger, and a page."""
    (tmp_path / "back").mkdir()
    (tmp_path / "page.md").write_text(tables.PAGE.read_text())
    return tmp_path / "back", ("--ledger", tmp_path / "ledger.jsonl", "--page", tmp_path / "page.md")


def came_back(folder, *results):
    (folder / RESULTS).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in results))


def test_keep_enters_what_a_gpu_gave_and_shows_it_on_the_page(places):
    folder, options = places
    line = {"step": "decode", "rows": 64, "us": 3210.0, "host_us": 400.0}
    came_back(folder, result(step="steps 0.6B triton", pack="bench", figures=[{"started_s": 9}, line]), result())
    done = call("keep", folder, *options)
    assert done.returncode == 0, done.stderr
    assert "entered: steps 0.6B triton: passed on NVIDIA H100" in done.stdout
    assert len(read_results(options[1])) == 2
    page = options[3].read_text()
    assert "| 0.6B, triton, 64 rows | 3.0 ms (floor 1.96) | | 3.21 ms | |" in page
    assert "| `generation` | values | H100 2026-11-27 |" in page
    assert "nothing new" in call("keep", folder, *options).stdout


def test_keep_shows_a_rehearsal_and_enters_nothing(places):
    folder, options = places
    steps = result(step="steps 0.6B triton", figures=[{"step": "decode", "rows": 1, "us": 999.0}])
    came_back(folder, *(msgspec.structs.replace(each, rehearsal=True, gpu="no GPU") for each in (result(), steps)))
    before = options[3].read_text()
    done = call("keep", folder, *options)
    assert done.returncode == 0, done.stderr
    assert "rehearsal, not entered: generation: passed on no GPU" in done.stdout
    assert "rehearsal, not entered: table steps, 0.6B, triton, 1 row: 1.00 ms" in done.stdout
    assert not options[1].exists()
    assert options[3].read_text() == before
    assert call("keep", folder.parent, *options).returncode == 2, "a folder without results"


@pytest.mark.slow
def test_next_names_what_is_due_and_what_to_do(tmp_path):
    done = call("next", "--carried", tmp_path / "none")
    assert done.returncode == 0, done.stderr
    ledger = Ledger(read_results(LEDGER))
    for name, steps in packs().items():
        passed = command.passed(steps, ledger, expected_versions())
        due = [item.name for step in steps for item in step.parts if item.name not in passed]
        line = next(line for line in done.stdout.splitlines() if line.startswith(f"{name}:"))
        assert all(item in line for item in due if item != "machine")
    assert "is not there: tools/gpu_session.sh pack" in done.stdout


# --- the tables ---


def test_the_page_has_what_the_ledger_has():
    page = tables.PAGE.read_text()
    assert tables.render(page, Ledger(read_results(LEDGER))) == page, "tools/gpu_session.sh keep writes its tables"


def test_no_rehearsal_is_in_the_ledger():
    assert not any(each.rehearsal or each.gpu == "no GPU" for each in read_results(LEDGER))


def test_each_row_reads_a_figure_of_a_step_that_is_there():
    names = {item.name for pack in packs().values() for step in pack for item in step.parts}
    assert {row.step for table in tables.TABLES for row in table.rows} <= names


def test_a_cell_says_what_came_of_its_step():
    row = tables.Row("rate", "bench triton", tables.at("service", "tok_s"))
    assert row.cell(Ledger(), "H100") == ""
    cell = lambda **fields: row.cell(Ledger([result(step="bench triton", **fields)]), "H100")  # noqa: E731
    assert cell(figures=[{"service": {"tok_s": 16_543.2}}]) == "16,543"
    assert cell(outcome="failed") == "failed"
    assert cell(outcome="failed", figures=[{"service": {"tok_s": 16_543.2}}]) == "16,543"
    assert cell(figures=[{"service": {"tok_s": None}}]) == "not said"
    assert cell(figures=[]) == "not said"
