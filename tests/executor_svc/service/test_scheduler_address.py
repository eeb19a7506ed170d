"""A scheduler that moves: the file that says where it is, and a real process that follows it."""

import os
from pathlib import Path

import pytest

from common import messages as m
from executor_svc.service.scheduler_address import AddressFileError, SchedulerAddress
from tests.executor_svc.service.steps import plan, tokens_of
from tests.support.fake_scheduler import FakeScheduler


def put(path: Path, text: str) -> None:
    written = path.with_suffix(".new")
    written.write_text(text)
    os.replace(written, path)


def test_an_endpoint_never_changes() -> None:
    address = SchedulerAddress("tcp://10.0.0.1:5555")
    assert (address.endpoint, address.has_changed()) == ("tcp://10.0.0.1:5555", False)


def test_a_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "scheduler"
    put(path, "tcp://10.0.0.1:5555\n")
    address = SchedulerAddress(f"file:{path}")
    assert (address.endpoint, address.has_changed()) == ("tcp://10.0.0.1:5555", False)
    put(path, "tcp://[fd00::2]:5556")
    assert address.has_changed()
    assert (address.endpoint, address.has_changed()) == ("tcp://[fd00::2]:5556", False)


@pytest.mark.parametrize("text", ["", "10.0.0.1:5555", "tcp://10.0.0.1", "http://10.0.0.1:80", "a\nb", "x" * 5000])
def test_a_file_without_an_endpoint(tmp_path: Path, text: str) -> None:
    path = tmp_path / "scheduler"
    put(path, text)
    with pytest.raises(AddressFileError, match="no endpoint"):
        SchedulerAddress(f"file:{path}")
    put(path, "ipc:///run/baton")
    address = SchedulerAddress(f"file:{path}")
    put(path, text)
    assert not address.has_changed()
    path.unlink()
    assert not address.has_changed()
    assert address.endpoint == "ipc:///run/baton"


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(AddressFileError, match="cannot be read: No such file"):
        SchedulerAddress(f"file:{tmp_path / 'scheduler'}")


def test_an_executor_follows_a_scheduler_that_moves(tmp_path: Path) -> None:
    path = tmp_path / "scheduler"
    path.write_text("tcp://127.0.0.1:1")  # nothing listens there
    scheduler = FakeScheduler("-m", "tests.executor_svc.puppet", f"file:{path}")
    try:
        put(path, scheduler.endpoint)
        scheduler.join()
        scheduler.send(plan(epoch=1))
        assert tokens_of(scheduler.expect(m.StepResult)) == [5]
        scheduler.router.unbind(scheduler.endpoint)
        moved = f"tcp://127.0.0.1:{scheduler.router.bind_to_random_port('tcp://127.0.0.1')}"
        scheduler.send(m.EpochOver(epoch=1, reason="the scheduler moves"))
        put(path, moved)
        scheduler.join()
        scheduler.send(plan(epoch=2))
        assert tokens_of(scheduler.expect(m.StepResult)) == [5]
    finally:
        scheduler.close()
    assert f"scheduler={moved}" in scheduler.close()
