"""Log lines that machines can read, and that no peer can flood."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from common import logging as log_module
from common.logging import DropLog, QuietLog, get_logger, setup_logging


@pytest.fixture(autouse=True)
def _as_in_a_new_process(monkeypatch):
    """And afterwards as it was: other tests of this process have loggers, too."""
    root, library = logging.getLogger(), logging.getLogger("uvicorn.error")
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    monkeypatch.setattr(library, "filters", [])
    monkeypatch.setattr(root, "handlers", [])
    levels = {logger: logger.level for logger in (root, library)}
    library.setLevel(logging.NOTSET)
    yield
    for logger, level in levels.items():
        logger.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(log_module, "time", clock)
    return clock


def test_json_lines(capsys):
    setup_logging("executor", log_format="json")
    get_logger("a").info("joined", epoch=3, name='quoted "x"\nand more', path=object)
    try:
        raise ValueError("broken")
    except ValueError:
        get_logger("a").exception("step failed")
    logging.getLogger("some.library").warning("it says %s", "so")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["joined", "step failed", "it says so"]
    assert (lines[0]["epoch"], lines[0]["name"], lines[0]["level"]) == (3, 'quoted "x"\nand more', "info")
    assert "ValueError: broken" in lines[1]["exception"]
    assert {line["service"] for line in lines} == {"executor"}
    assert all(line["time"].endswith("Z") for line in lines)


def test_logfmt_lines(capsys):
    setup_logging("scheduler")
    get_logger("a").info("core started", window=2)
    assert capsys.readouterr().err.endswith('level=info service=scheduler event="core started" window=2\n')


TRICK = 'gpu\r\x1b[2K\x9b1A\x7f level=info "all is well"\u2028\u202e\t\x00'


@pytest.mark.parametrize("log_format", ["logfmt", "json"])
def test_what_a_peer_says_cannot_act_on_a_terminal(capsys, log_format):
    setup_logging("scheduler", log_format=log_format)
    get_logger("a").warning(TRICK, executor=TRICK, path=Path(TRICK), facts=[TRICK])
    logging.getLogger("some.library").warning("it says %s", TRICK)
    first, second, rest = capsys.readouterr().err.split("\n")
    assert first.isprintable()
    assert second.isprintable()
    assert rest == ""
    if log_format == "json":
        assert json.loads(first)["executor"] == TRICK
    else:
        assert r'executor="gpu\r\x1b[2K\x9b1A\x7f level=info \"all is well\"\u2028\u202e\t\x00"' in first


def test_a_traceback_is_one_line_of_logfmt_and_other_languages_are_readable(capsys):
    setup_logging("scheduler")
    try:
        raise ValueError("défaut 故障")
    except ValueError:
        get_logger("a").exception("step failed")
    line = capsys.readouterr().err
    assert r"\n  File " in line
    assert "ValueError: défaut 故障" in line
    assert line.count("\n") == 1


def test_one_line_a_second_with_the_number_of_events(capsys, clock):
    setup_logging("scheduler", log_format="json")
    quiet = QuietLog(get_logger("a"), "executor refused", link="executors")
    for count in (1000, 500, 1):
        for number in range(count):
            quiet.happened(address=number)
        clock.now += 1.0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["since_last"], line["address"], line["link"]) for line in lines] == [
        (1, 0, "executors"),
        (1000, 0, "executors"),
        (500, 0, "executors"),
    ]
    assert quiet.count == 1501


def test_what_is_dropped_is_told_in_short(capsys):
    setup_logging("scheduler", log_format="json")
    DropLog(get_logger("a"), "frontends").dropped("beef", ValueError("x" * 5000))
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["link"], line["sender"]) == ("message dropped", "frontends", "beef")
    assert len(line["reason"]) == 300


@pytest.mark.parametrize("first", ["common.logging", "rich.console"])
def test_a_process_that_only_logs_does_not_import_what_draws_tables(first):
    code = f"""
import sys
import {first}
import common.logging
assert ("rich" in sys.modules) == {first.startswith("rich")}
import rich.table
rich.table.Table()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
