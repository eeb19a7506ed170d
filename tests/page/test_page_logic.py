"""The page's own logic, by Node's test runner: what needs no browser is tested without one."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
OLDEST_NODE = 20  # has the test runner, and all of JavaScript that the page is written in


def node():
    """A Node that is new enough: the machine's own, or the one that Playwright's wheel brings."""
    candidates = [shutil.which("node")]
    if (playwright := importlib.util.find_spec("playwright")) is not None:
        candidates.append(str(Path(playwright.origin).parent / "driver" / "node"))
    for program in candidates:
        if program and Path(program).exists():
            version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
            if (match := re.match(r"v(\d+)\.", version)) and int(match[1]) >= OLDEST_NODE:
                return program
    pytest.skip(f"needs Node {OLDEST_NODE} or newer, which Playwright brings: pip install --editable '.[dev]'")


def test_logic():
    tests = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.test.js"))
    assert tests
    all_of_them = "".join(f"await import('./{path}');" for path in tests)  # in one process
    command = [node(), "--test-reporter=tap", "--input-type=module", "--eval", all_of_them]
    ran = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    counted = dict(re.findall(r"^# (\w+) (\d+)$", ran.stdout, re.MULTILINE))
    assert int(counted["pass"]) >= len(tests), ran.stdout
    assert counted["skipped"] == counted["todo"] == "0", ran.stdout
