"""Whether a process traces, and that it costs nothing where it does not."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from common.installation import install_command
from scheduler_svc.frontend.tracing import start

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program that has set up its log, and may trace."""
    begin = """
import sys
from types import SimpleNamespace
from common.logging import setup_logging
import scheduler_svc.frontend.__main__, scheduler_svc.frontend.background.__main__
from scheduler_svc.frontend.tracing.start import start_tracing
setup_logging("frontend")
def trace():
    return start_tracing(SimpleNamespace(life=None), "frontend")
"""
    return subprocess.run(
        [sys.executable, "-c", begin + code],
        env=environment | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


def test_without_the_variable_nothing_is_imported():
    code = "assert trace() is None; print(*sys.modules)"
    answer = run(code)
    modules = answer.stdout.split()
    assert "scheduler_svc.frontend.tracing.start" in modules
    ours = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto", "google", "requests")
    assert not [name for name in modules if name.startswith(ours)]  # FastAPI imports the API itself, if it is there
    assert answer.stderr == ""


def test_without_the_packages_a_line_says_how_to_install_them():
    code = "sys.modules['opentelemetry'] = None; assert trace() is None"
    [line] = run(code, **ENDPOINT).stderr.splitlines()
    assert "level=warning" in line
    assert 'event="no traces"' in line
    assert install_command("otel") in line


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, ""),
        ({"OTEL_SDK_DISABLED": "True"}, ""),
        ({"OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "not by grpc"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, "wrong value"),
    ],
)
def test_what_keeps_it_from_tracing(variables: dict[str, str], reason: str, monkeypatch):
    for name, value in (ENDPOINT | variables).items():
        monkeypatch.setenv(name, value)
    with capture_logs() as lines:
        assert start.start_tracing(SimpleNamespace(life=None), "frontend") is None
    said = [line["reason"] for line in lines if line["log_level"] == "warning"]
    assert len(said) == (1 if reason else 0)
    assert all(reason in line for line in said)


def test_one_endpoint_for_traces_alone_is_enough():
    assert start.is_wanted({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x/v1/traces"})
    assert not start.is_wanted({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x"})
