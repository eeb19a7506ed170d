"""Real services: processes, sockets, HTTP, the embedded demo model in float32."""

import openai
import pytest

from scheduler_svc.client.processes.local_fleet import LocalFleet
from tests.support.fleets import running_fleet

API_KEY = "e2e-key"


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
