"""Real services: processes, sockets, HTTP, the embedded demo model in float32."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, free_ports

API_KEY = "e2e-key"


@contextlib.contextmanager
def running_fleet(
    log_dir: Path, *, executors: int = 1, executor_options=(), scheduler_options=()
) -> Iterator[LocalFleet]:
    """Scheduler and executors on free ports; their logs are printed if the test fails."""
    port, executor_port = free_ports(2)
    spec = FleetSpec(
        port=port,
        executor_port=executor_port,
        executors=executors,
        scheduler_options=("--journal", str(log_dir / "journal.sqlite3"), *scheduler_options),
        executor_options=("--threads", "1", "--num-blocks", "2048", *executor_options),
    )
    with LocalFleet(spec, log_dir) as fleet:
        try:
            fleet.wait_ready()
            yield fleet
        except BaseException:
            for log in sorted(log_dir.glob("*.log")):
                print(f"--- {log.name} ---\n{log.read_text()[-6000:]}")
            raise


def client_of(fleet: LocalFleet, api_key: str = API_KEY) -> openai.OpenAI:
    """The published client, without its own retries: a failure is to be seen."""
    return openai.OpenAI(base_url=f"{fleet.spec.url}/v1", api_key=api_key, max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with running_fleet(tmp_path_factory.mktemp("logs"), scheduler_options=("--api-key", API_KEY)) as running:
        yield running


@pytest.fixture
def client(fleet):
    return client_of(fleet)
