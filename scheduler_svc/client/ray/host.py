"""One process, kept up on the machine where this object lives; on Ray, the object is an actor. Imports no Ray.

A process that ends is started again after a growing delay, unless it was told to leave, says that its configuration is
wrong, or has ended five times in a row soon after its start or saying that it could not start. The kernel kills it when
its host ends, however that ends.
"""

import http.client
import os
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

from common.errors import BatonError
from common.trust import first_of_ours, why_not_ours_alone
from scheduler_svc.client.clock import Clock
from scheduler_svc.client.processes.child import Child, ChildEnd
from scheduler_svc.client.processes.log_tail import LogTail
from scheduler_svc.client.processes.supervisor import RestartPolicy
from scheduler_svc.client.ray.facts import HostReport, Life
from scheduler_svc.client.ray.task import HEALTH_FILE, Task, in_url

HEALTHY_FOR_S = 5.0  # after its health file was touched

_POLL_INTERVAL_S = 0.1
_LOG_LINES = 15
_QUICK_S = 10.0
_MAX_QUICK_ENDS = 5
_FOLDER_CHARS = 60  # a keeper's socket lies in there, and its path may have 107


class HostError(BatonError):
    """A host cannot use the machine that it is on."""


class Hope:
    """That another start of a process helps: none for one that is misconfigured, nor after five quick ends in a row.
    torchrun hides what its ranks say."""

    def __init__(self) -> None:
        self._quick_ends = 0

    def ends_with(self, end: ChildEnd) -> bool:
        """Count an end of the process. Returns whether it was the last."""
        is_quick = end.wants_another_start or (end.uptime_s < _QUICK_S and end.returncode != 0)
        self._quick_ends = self._quick_ends + 1 if is_quick else 0
        return end.misconfigured or self._quick_ends == _MAX_QUICK_ENDS


class ProcessHost:
    """Starts the process at once, and keeps it up.

    Args:
        name: of this host.
        fleet: name of the fleet.
        task: what to run.
        node: id of this node, and its address.
        gpus: numbers of the GPUs of the process; None leaves its environment as it is.
        clock: by which it waits between two starts.

    Raises:
        HostError: its folder cannot be made, or belongs to another user.
    """

    def __init__(
        self,
        name: str,
        fleet: str,
        task: Task,
        node: tuple[str, str],
        gpus: tuple[str, ...] | None = None,
        clock: Clock = Clock(),  # noqa: B008
    ) -> None:
        self._clock = clock
        self._name = name
        self._task = task
        self._address = node[1]
        self._gpus = gpus
        shared = fleet[:_FOLDER_CHARS]
        # Anyone could have made the first one before. All hosts of the fleet on this machine choose the same.
        places = [Path(tempfile.gettempdir(), f"baton-ray-{os.geteuid()}"), Path(os.path.expanduser("~"), ".baton-ray")]
        self._shared = _own_folder(_own_folder(first_of_ours(places, shared)) / shared)
        self._shared = _own_folder(self._shared / node[0][:8])
        self._folder = self._shared / name
        shutil.rmtree(self._folder, ignore_errors=True)  # of an earlier host of this name
        _own_folder(self._folder)
        for path, text in task.files.items():
            self.put_file(path, text)
        visible = tuple(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
        self._report = HostReport(
            node=node[0], address=node[1], gpus=visible if gpus is None else gpus, public_key=task.public_key
        )
        self._leave_by: float | None = None
        self._leave_asked = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._thread.start()  # one thread starts all processes: the kernel kills them when it ends, with this process

    def report(self) -> HostReport:
        """How it is now."""
        return replace(self._report, is_leaving=self._leave_asked.is_set(), is_well=self._is_well())

    def put_file(self, path: str, text: str) -> None:
        """Write a file in this host's folder, at once as a whole."""
        target = self._folder / path
        _own_folder(target.parent)
        written = target.with_name(f".{target.name}.new")
        written.touch(mode=0o600)
        written.write_text(text)
        written.replace(target)

    def drop_file(self, path: str) -> None:
        """Remove a file from this host's folder, if it is there."""
        (self._folder / path).unlink(missing_ok=True)

    def leave(self, timeout_s: float) -> None:
        """Let the process end: SIGTERM, and after `timeout_s` seconds SIGKILL. Returns at once."""
        if not self._leave_asked.is_set():
            self._leave_by = time.monotonic() + timeout_s
            self._leave_asked.set()

    def get(self, host: str, port: int, path: str, api_key: str = "") -> bytes | None:
        """What the process answers to an HTTP request from its own machine; None if it is not 200."""
        connection = http.client.HTTPConnection(host, port, timeout=2.0)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
            answer = connection.getresponse()
            return answer.read() if answer.status == http.HTTPStatus.OK else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def _supervise(self) -> None:
        self._keep_up()
        if self._report.life is Life.LEFT:
            shutil.rmtree(self._folder, ignore_errors=True)  # the keys in it are of no use any more

    def _keep_up(self) -> None:
        policy, hope, is_first = RestartPolicy(), Hope(), True
        while not self._leave_asked.is_set():
            command = self._task.command if is_first or not self._task.again else self._task.again
            is_first = False
            log = LogTail(_LOG_LINES)
            try:
                child = Child(
                    self._name, self._filled(command), None, self._environment(), self._task.without, log.descriptor
                )
            except OSError as error:
                self._set(life=Life.FAILED, reason=f"{command[0]}: {error.strerror}")
                return
            finally:
                log.started()
            self._set(pid=child.pid)
            end = self._watch(child)
            self._set(pid=0, ends=self._report.ends + 1, reason=f"{end}: {log.text()}")
            if self._leave_asked.is_set():
                break
            if hope.ends_with(end):
                self._set(life=Life.FAILED)
                return
            self._clock.wait(self._leave_asked, policy.delay_s(end))
        self._set(life=Life.LEFT)

    def _watch(self, child: Child) -> ChildEnd:
        """Wait for its end, which is brought about if this host is told to leave."""
        is_told = False
        while not child.has_ended():
            if self._leave_asked.wait(0.0 if is_told else _POLL_INTERVAL_S):
                if not is_told:
                    child.terminate()
                    is_told = True
                assert self._leave_by is not None
                if time.monotonic() >= self._leave_by:
                    break
                time.sleep(_POLL_INTERVAL_S / 4)
        child.kill()
        return ChildEnd(self._name, child.returncode, child.uptime_s)

    def _set(self, **changes: object) -> None:
        self._report = replace(self._report, **changes)  # type: ignore[arg-type]  # fields of HostReport

    def _is_well(self) -> bool:
        try:
            status = (self._folder / HEALTH_FILE).stat()
        except OSError:
            return False
        return time.time() - status.st_mtime < HEALTHY_FOR_S

    def _filled(self, command: tuple[str, ...]) -> list[str]:
        places = {
            "python": sys.executable,
            "folder": str(self._folder),
            "shared": str(self._shared),
            "host": in_url(self._address),
        }
        for place, text in places.items():
            command = tuple(word.replace(f"{{{place}}}", text) for word in command)
        return list(command)

    def _environment(self) -> dict[str, str]:
        gpus = {} if self._gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(self._gpus)}
        return {"BATON_NODE": self._address, **gpus}


def _own_folder(path: Path) -> Path:
    """Make it, if it is not there, so that only this user can use it."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise HostError(f"{path}: {error.strerror}") from error
    if fault := why_not_ours_alone(path):
        raise HostError(f"{fault}: it is to be for this user alone (chmod 700)")
    return path
