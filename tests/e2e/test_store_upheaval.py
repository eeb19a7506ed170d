"""The disk under a running service: a store that is damaged or taken away is told by name, and nothing else fails."""

import os
from pathlib import Path

import httpx
import pytest

from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, free_ports
from tests.support.eventually import eventually

FRONTENDS = 2


JUMP = """
import os, time
wall, at = time.time, os.environ["WALL_AHEAD"]
time.time = lambda: wall() + float(open(at).read())
"""  # a sitecustomize, for all processes of a service: the wall's clock shows so many seconds more


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a service's files and logs."""
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def ahead(folder):
    """A file with the seconds by which a service's clock is ahead."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(JUMP)
    (folder / "ahead").write_text("0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WALL_AHEAD", str(folder / "ahead"))
        patch.setenv("PYTHONPATH", str(folder / "site"), prepend=os.pathsep)
        yield folder / "ahead"


@pytest.fixture(scope="module")
def service(folder, ahead):
    """A client of a service that has no executor, so that responses in the background stay open. Each request takes a
    connection of its own: both frontends are asked."""
    port, executor_port = free_ports(2)
    spec = FleetSpec(
        port=port,
        executor_port=executor_port,
        executors=0,
        scheduler_options=("--journal", str(folder / "journal"), "--frontends", str(FRONTENDS)),
    )
    client = httpx.Client(base_url=spec.url, limits=httpx.Limits(max_keepalive_connections=0), timeout=60.0)
    with LocalFleet(spec, folder), client:
        eventually(lambda: log(folder).count("core found") == FRONTENDS)
        yield client


@pytest.fixture
def said(service, folder):
    """Gives what the service has logged since the test began."""
    before = len(log(folder))
    return lambda: log(folder)[before:]


def log(folder: Path) -> str:
    return (folder / "scheduler.log").read_text()


def upload(client: httpx.Client, size: int = 100) -> httpx.Response:
    return client.post("/v1/files", files={"file": ("f", b"x" * size)}, data={"purpose": "batch"})


def respond(client: httpx.Client) -> httpx.Response:
    """In the background, and of a given length: a frontend may not know yet what the model allows."""
    body = {"model": "baton-demo", "input": "a", "background": True, "max_output_tokens": 1000}
    return client.post("/v1/responses", json=body)


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_store_that_is_taken_away_is_told_by_name_and_comes_back(service, said, folder):
    file_id = upload(service).json()["id"]
    store, aside = folder / "journal.store", folder / "aside"
    store.rename(aside)
    for _ in range(6):
        assert error_of(upload(service)) == (507, "store_gone")
        assert error_of(respond(service)) == (507, "store_gone")
        assert error_of(service.get(f"/v1/files/{file_id}")) == (507, "store_gone")
        assert service.get("/health").status_code == 200
    assert not store.exists(), "no empty one is in the way"
    counted = 'baton_requests_refused_total{code="store_gone"} 18.0\n'
    eventually(lambda: counted in service.get("/metrics").text)
    aside.rename(store)
    assert service.get(f"/v1/files/{file_id}").status_code == 200
    assert upload(service).status_code == 200
    gone = said().count("the store is gone")
    measuring = 1  # the scheduler, if its second came meanwhile
    assert 1 <= gone <= FRONTENDS + measuring, "once for each process that has noticed"
    eventually(lambda: said().count("the store is back") == gone)
    assert "Traceback" not in said()


def test_a_clock_that_jumps_a_month_ahead_deletes_nothing(service, said, ahead):
    file_id, other_id = (upload(service).json()["id"] for _ in range(2))
    waiting = respond(service).json()["id"]
    ahead.write_text(str(40 * 86_400))
    service.delete(f"/v1/files/{other_id}")  # which wakes a sweep
    eventually(lambda: "the clock has jumped ahead" in said())
    for _ in range(6):
        assert service.get(f"/v1/files/{file_id}").status_code == 200
        assert service.get(f"/v1/responses/{waiting}").json()["status"] in ("queued", "in_progress")
    new_id = upload(service).json()["id"]
    ahead.write_text("0")
    service.delete(f"/v1/files/{new_id}")
    eventually(lambda: "the clock is believed again" in said())
    assert service.get(f"/v1/files/{file_id}").status_code == 200
    assert said().count("the clock has jumped ahead") == said().count("the clock is believed again") == 1


def test_a_damaged_store_is_replaced_under_load(service, said, folder):
    waiting = respond(service).json()["id"]
    eventually(lambda: service.get(f"/v1/responses/{waiting}").json()["status"] == "in_progress")
    file_id = upload(service, 8 << 20).json()["id"]  # more than is in a log, or in the cache of a connection
    path = folder / "journal.store" / "store.db"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * path.stat().st_size)
    with pytest.raises(httpx.RemoteProtocolError):  # what was sent ends where the file is broken
        service.get(f"/v1/files/{file_id}/content")
    assert "the rest of a file cannot be read" in said()
    told = []

    def is_replaced() -> bool:
        told.append(service.get(f"/v1/files/{file_id}"))
        return "a new store is begun" in said()

    eventually(is_replaced)
    assert {answer.status_code for answer in told} <= {404, 503}
    eventually(lambda: upload(service).status_code == 200)
    for _ in range(6):
        assert upload(service).status_code == 200
        assert respond(service).status_code == 200
        assert error_of(service.get(f"/v1/files/{file_id}")) == (404, "file_not_found")
        assert error_of(service.get(f"/v1/responses/{waiting}")) == (404, "response_not_found")
    assert said().count("the store is damaged") == said().count("a new store is begun") == 1
    assert "Traceback" not in said()
