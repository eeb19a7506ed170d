"""Real services: processes, sockets, HTTP, the embedded demo model in float32."""

import contextlib
import os

import openai
import pytest

from scheduler_svc.client.processes.local_fleet import LocalFleet
from tests.support.fleets import running_fleet

API_KEY = "e2e-key"
SLOW_EXIT = """
import os, time
end = os._exit
def slow_exit(code):
    while os.path.exists(os.environ["ENDS_SLOWLY"]):
        time.sleep(0.05)
    end(code)
if b"executor_svc" in open("/proc/self/cmdline", "rb").read():
    os._exit = slow_exit
"""  # a sitecustomize: an executor's last call takes long, as a GPU's driver may to take a process down


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


@pytest.fixture(scope="module")
def ending_slowly(tmp_path_factory):
    """A context in which executors that were started since then take long to end."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(SLOW_EXIT)
    flag = folder / "slowly"

    @contextlib.contextmanager
    def slowly():
        flag.touch()
        try:
            yield
        finally:
            flag.unlink()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("ENDS_SLOWLY", str(flag))
        yield slowly
