"""The store's folder as the scheduler has it: locked before it is looked at, with a socket under any name."""

import socket
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from common.socket_path import MAX_PATH_BYTES, SocketPath
from scheduler_svc.__main__ import main
from scheduler_svc.server.store_folder import StoreFolder
from scheduler_svc.store import responses
from scheduler_svc.store.database import connect
from scheduler_svc.store.errors import StoreError
from scheduler_svc.store_options import WORKER_SOCKET
from tests.store.rows import response


@pytest.mark.parametrize("depth", [1, 4])
def test_the_worker_is_found_however_long_the_folders_name_is(tmp_path: Path, depth: int):
    folder = tmp_path.joinpath(*["x" * 60] * depth)
    opened = StoreFolder(folder, durable=False)
    assert opened.listener.fileno() >= 0
    place = SocketPath(folder / WORKER_SOCKET)
    assert len(place.path) <= MAX_PATH_BYTES
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(place.path)
        with opened.listener.accept()[0] as accepted:
            accepted.sendall(b"x")
        assert client.recv(1) == b"x"
    place.close()
    opened.close()
    again = StoreFolder(folder, durable=False)  # the socket of the one before is no obstacle
    again.close()
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".db") == sorted(
        ["scheduler.lock", "store.db.lock", "store.db.users", WORKER_SOCKET]
    )


def test_a_store_of_another_scheduler_is_left_alone(tmp_path: Path):
    first = StoreFolder(tmp_path, durable=False)
    assert not first.has_work
    with closing(connect(tmp_path)) as connection:
        responses.add(connection, response("resp_1", expires_at=None))
    with pytest.raises(StoreError, match="in use by another scheduler"):
        StoreFolder(tmp_path, durable=False, is_stopping=lambda: True)
    first.close()
    with closing(connect(tmp_path)):
        second = StoreFolder(tmp_path, durable=False)
        assert second.has_work
        second.close()


def test_a_folder_that_cannot_be_is_refused_and_not_kept_locked(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        StoreFolder(tmp_path / "file", durable=False)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "store.db").write_bytes(b"x" * 5000)
    for _ in range(2):  # the lock was let go
        with pytest.raises(StoreError, match=r"store\.db"):
            StoreFolder(tmp_path / "store", durable=False, is_stopping=lambda: True)


def test_a_store_is_named_or_done_without():
    result = CliRunner().invoke(main, ["--store", "x", "--no-store"])
    assert result.exit_code == 2
    assert "--store and --no-store contradict each other" in result.output
