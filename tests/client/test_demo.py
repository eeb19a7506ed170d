"""`baton demo` for real: both services, the demo model, a kill and a drain."""

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs torch: pip install baton[executor]"
)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_killed_and_drained_executors_change_nothing():
    command = [sys.executable, "-m", "scheduler_svc.client.cli", "demo", "--max-tokens", "60"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "── kill -9 executor-0" in done.stdout
    assert "── executor-1 joined after" in done.stdout
    assert "send_letter {" in done.stdout
    assert done.stdout.count("identical to the undisturbed run      yes") == 4
    assert "\x1b" not in done.stdout
