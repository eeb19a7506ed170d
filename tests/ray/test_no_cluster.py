"""`baton ray` with Ray, and without what it was to find."""

import subprocess
import sys

import pytest

from scheduler_svc.client.errors import FleetMisconfigured
from scheduler_svc.client.ray.operator import read_runtime_env


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "no.such.host.invalid:6379"])
def test_no_cluster_is_one_line(address):
    command = [sys.executable, "-m", "scheduler_svc.client.cli", "ray", "status", "--address", address]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert f"Error: there is no Ray cluster at {address} (" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "this is no JSON"), ("/no/such/file", "No such file"), ("FILE", "this is no JSON object")],
)
def test_a_runtime_environment_that_is_none(text, message, tmp_path):
    file = tmp_path / "env.json"
    file.write_text("[1]")
    with pytest.raises(FleetMisconfigured, match=message):
        read_runtime_env(text.replace("FILE", str(file)))


def test_a_runtime_environment_from_a_file(tmp_path):
    file = tmp_path / "env.json"
    file.write_text('{"py_modules": ["./a.whl"]}')
    assert read_runtime_env(str(file)) == {"py_modules": ["./a.whl"]} == read_runtime_env(file.read_text())
    assert read_runtime_env(None) == {}
