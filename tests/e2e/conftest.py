"""Real services: processes, sockets, HTTP, the embedded demo model in float32."""

import contextlib
import os

import openai
import pytest

from scheduler_svc.client.processes.local_fleet import SCHEDULER, LocalFleet, executor_name
from tests import ROOT
from tests.support.fleets import running_fleet
from tests.support.keyed import KeysCommand

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
SAY_MODULES = """
import atexit, os, pathlib, sys
said = pathlib.Path(os.environ["SAID"], str(os.getpid()))
atexit.register(lambda: said.write_text(" ".join([*sys.argv, *sys.modules])))
"""  # a sitecustomize: a process says what it has imported when it ends
LANES = 4  # of the only executor of `keyed`


def client_of(fleet: LocalFleet, api_key: str = API_KEY) -> openai.OpenAI:
    """The published client, without its own retries: a failure is to be seen."""
    return openai.OpenAI(base_url=f"{fleet.spec.url}/v1", api_key=api_key, max_retries=0, timeout=120)


@pytest.fixture(scope="package")
def imported(tmp_path_factory):
    """The folder of what the scheduler's processes of `one_fleet` that have ended had imported: a file for each."""
    return tmp_path_factory.mktemp("imported")


@pytest.fixture(scope="package")
def one_fleet(tmp_path_factory, imported):
    folder = tmp_path_factory.mktemp("one-fleet")
    (folder / "sitecustomize.py").write_text(SAY_MODULES)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", str(ROOT))])
    environment = {"PYTHONPATH": path, "SAID": str(imported)}
    options = ("--api-key", API_KEY)
    with running_fleet(folder, scheduler_options=options, scheduler_environment=environment) as running:
        yield running


def made_whole(fleet: LocalFleet) -> LocalFleet:
    """The fleet with a scheduler and executor 0 alone, whatever a test before has started and ended."""
    if SCHEDULER not in fleet.pids:
        fleet.start_child(SCHEDULER)
    if executor_name(1) in fleet.pids:
        fleet.kill_executor(1)
    if executor_name(0) not in fleet.pids:
        fleet.start_executor(0)
    fleet.wait_ready()
    return fleet


@pytest.fixture
def fleet(one_fleet):
    """One that needs `API_KEY`, for all tests that name no other."""
    return made_whole(one_fleet)


@pytest.fixture(scope="package")
def keys(tmp_path_factory):
    """Runs `baton keys`."""
    run = KeysCommand(tmp_path_factory.mktemp("keys"))
    run.root = run("api", "root", "--admin")
    run.few = run("api", "few", "--requests-per-minute", "2")
    run.small = run("api", "small", "--tokens-per-minute", "5000")
    run.heavy = run("api", "heavy")
    run.light = run("api", "light", "--weight", "2")
    return run


@pytest.fixture(scope="package")
def state(tmp_path_factory):
    """The folder of the journal of `keyed`."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="package")
def keyed(state, keys):
    """A fleet with these keys, that computes `LANES` sequences at once."""
    options, few = ("--api-keys", str(keys.file)), ("--max-num-seqs", str(LANES))
    with running_fleet(state, scheduler_options=options, executor_options=few) as running:
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
