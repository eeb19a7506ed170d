"""`baton demo` for real: both services, the demo model, a kill and a drain."""

import re
import subprocess
import sys

import pytest

from tests.client.fleets import needs_torch

pytestmark = needs_torch


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_executors_that_go_change_nothing():
    command = [sys.executable, "-m", "scheduler_svc.client.cli", "demo", "--max-tokens", "60"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("── kill -9 executor-") == 4
    assert "is told to leave ──" in done.stdout
    assert len(re.findall(r"── executor-\d goes on ──", done.stdout)) == 3
    assert "tokens computed again                      0\n" in done.stdout
    assert "── executor-4 joined after" in done.stdout
    assert "send_letter {" in done.stdout
    assert done.stdout.count("identical to the undisturbed run      yes") == 3
    assert "\x1b" not in done.stdout
