"""Does what Baton's keeper rests on hold on this GPU? Proves or refutes it, statement by statement.

    python tools/gpu_keeper_proof.py

This process plays the keeper: it never loads CUDA, and holds file descriptors of GPU memory that its children made.
The children (`gpu_keeper_roles.py`) play executors, with the code that executors have
(`executor_svc/devices/cuda_memory.py`, `cuda_mapping.py`). The statements:

    outlives    memory keeps its content after SIGKILL of the process that made it, if a process without CUDA has a
                descriptor of it; another process maps it by that descriptor
    anchored    only if `outlives` is refuted: the same, if a process with CUDA has imported it, too
    freed       the GPU has the memory back when the last descriptor is closed
    silent      once the pidfd of a killed writer is readable, no byte changes any more, though kernels were running
    guarded     memory that is mapped for reading alone can be read, and a kernel that writes there fails and changes
                nothing
    remapped    a CUDA graph that was captured over scratch memory replays on the pool that comes to its addresses

Prints a JSON line for each: `outcome` ("proven", "refuted", "unsupported": a call is refused or a package is missing,
"skipped", or "failed"), times in milliseconds, sizes in bytes, and in `then` what follows if it was refuted. Exits with
0 if all were proven, 3 if one was refuted, 2 if one is unsupported or skipped, 1 if the script itself failed.

**It has not run on a GPU yet**, only over memfds (tests/gpu_session/test_keeper_proof.py).
"""

import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POOL_BYTES = 64 * 2**20
ROUNDS = 5  # in which a writer is killed
TIMEOUT_S = 30.0  # for a child's word: importing torch and making a context take some seconds

THEN = {
    "outlives": "a bare descriptor does not keep GPU memory: see `anchored`",
    "anchored": "no process can keep GPU memory for another: on a GPU executors keep their pools to themselves "
    "(--no-keep), and a swap recomputes",
    "freed": "a pool that is dropped does not come back while the keeper lives: the keeper (or its anchor process for "
    "the GPU) must be started again after each drop",
    "silent": "an executor's pidfd is no proof that its kernels have ended: before the keeper hands a pool on, it has "
    "to wait until the driver's list of processes (NVML) no longer has the executor",
    "guarded": "a stray kernel of one executor can spoil the weights of all: until a driver guards them, executors on "
    "GPUs keep their weights to themselves",
    "remapped": "a standby cannot capture its graphs before it has the pool: it captures them after the lease, or runs "
    "kernel by kernel until then",
}
ANCHOR = (
    "a bare descriptor is not enough: the keeper needs a process for each GPU that uses CUDA and has imported each "
    "descriptor, without a mapping, as Dynamo's GPU memory service does; see docs/gpu.md"
)
EXIT_CODES = {"failed": 1, "refuted": 3, "unsupported": 2, "skipped": 2, "proven": 0}

MakeDriver = Callable[[], Any]
Figures = dict[str, Any]


class Fault(Exception):
    """A child could not do its part.

    Args:
        told: its last word, with an outcome.
    """

    def __init__(self, told: Figures) -> None:
        super().__init__(str(told))
        self.told = told


@dataclass(frozen=True)
class Child:
    """A process that plays a role.

    Attributes:
        pidfd: readable when the process has ended.
        sock: to it.
    """

    pid: int
    pidfd: int
    sock: socket.socket

    def heard(self) -> tuple[Figures, list[int]]:
        """Its next word, and the descriptors that came along.

        Raises:
            Fault: it says that it failed, says nothing, or has ended.
        """
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, 65536, 4)
        except TimeoutError as error:
            raise Fault({"outcome": "failed", "error": f"a child said nothing for {TIMEOUT_S:.0f} s"}) from error
        if not data:
            raise Fault({"outcome": "failed", "error": "a child ended without a word"})
        told: Figures = json.loads(data)
        if "outcome" in told:
            raise Fault(told)
        return told, list(fds)

    def kill(self) -> float:
        """End it. Returns after how many milliseconds its pidfd said so."""
        began_s = time.monotonic()
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        ended = select.poll()
        ended.register(self.pidfd, select.POLLIN)
        if not ended.poll(1000 * TIMEOUT_S):
            raise Fault({"outcome": "failed", "error": f"a killed child has not ended after {TIMEOUT_S:.0f} s"})
        return _ms(began_s)


class Keeper:
    """Starts children, and holds what they send.

    Args:
        make_driver: makes a child's bindings of CUDA; None for NVIDIA's.
    """

    def __init__(self, make_driver: MakeDriver | None) -> None:
        self._make_driver = make_driver

    @contextmanager
    def child(self, role: str, fds: tuple[int, ...] = ()) -> Iterator[Child]:
        """A child that plays a function of `gpu_keeper_roles`, until the end of the block."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(TIMEOUT_S)
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._play(role, theirs, fds)
        theirs.close()
        child = Child(pid, os.pidfd_open(pid), ours)
        try:
            yield child
        finally:
            signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(child.pidfd)
            ours.close()

    def free_bytes(self) -> int:
        """Of the GPU's memory, as a process says that has nothing there but its context."""
        with self.child("scale") as scale:
            return int(scale.heard()[0]["free"])

    def _play(self, role: str, sock: socket.socket, fds: tuple[int, ...]) -> None:
        try:
            sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
            roles = importlib.import_module("gpu_keeper_roles")
            roles.play(role, sock, self._make_driver, POOL_BYTES, fds)
        except Exception as error:  # whatever it is, the keeper waits for a word
            told = {"outcome": "failed", "error": f"{type(error).__name__}: {error}"}
            sock.sendall(json.dumps(told).encode())
        finally:
            os._exit(0)


def outlives(keeper: Keeper, anchored: bool = False) -> Iterator[Figures]:
    """`outlives` and `freed`, or `anchored`."""
    free_before = keeper.free_bytes()
    with keeper.child("maker") as maker:
        made, (fd,) = maker.heard()
        figures = made | {"keeper_without_cuda": "libcuda" not in Path("/proc/self/maps").read_text()}
        if anchored:
            with keeper.child("anchor", (fd,)) as anchor:
                anchor.heard()
                figures["kill_ms"] = maker.kill()
                yield {"statement": "anchored", **figures, **_inherited(keeper, fd), "then": ANCHOR}
            os.close(fd)
            return
        figures["kill_ms"] = maker.kill()
    yield {"statement": "outlives", **figures, **_inherited(keeper, fd)}
    held = keeper.free_bytes()
    began_s = time.monotonic()
    os.close(fd)
    free_after = keeper.free_bytes()
    kept, came_back = free_before - held >= POOL_BYTES // 2, free_after - held >= POOL_BYTES // 2
    sizes = {"free_before": free_before, "free_while_held": held, "free_after": free_after}
    yield {
        "statement": "freed",
        # If the memory was not kept, then nothing is said about its coming back.
        "outcome": "skipped" if not kept else "proven" if came_back else "refuted",
        "within_ms": _ms(began_s),
        **sizes,
    }


def silent(keeper: Keeper) -> Iterator[Figures]:
    """`silent`: several writers are killed, one after the other."""
    with keeper.child("maker") as maker:
        _, (fd,) = maker.heard()
        kills_ms: list[float] = []
        looks: list[Figures] = []
        how = ""
        for _ in range(ROUNDS):
            with keeper.child("writer", (fd,)) as writer:
                how = str(writer.heard()[0]["how"])
                with keeper.child("watcher", (fd,)) as watcher:
                    saw = watcher.heard()[0]
                    if not saw["writes"]:
                        raise Fault(
                            {"outcome": "failed", "error": "the writer writes nothing, so its end says nothing"}
                        )
                    kills_ms.append(writer.kill())
                    watcher.sock.sendall(b"look")
                    looks.append(watcher.heard()[0])
        os.close(fd)
    figures: Figures = {name: [look[name] for look in looks] for name in ("changed_bytes", "look_ms")}
    outcome = "proven" if not any(figures["changed_bytes"]) else "refuted"
    yield {"statement": "silent", "outcome": outcome, "writes": how, "kill_ms": kills_ms, **figures}


def guarded(keeper: Keeper) -> Iterator[Figures]:
    """`guarded`: a process reads what it may only read, and tries to write it."""
    with keeper.child("maker") as maker:
        _, (fd,) = maker.heard()
        with keeper.child("reader", (fd,)) as reader:
            told, _ = reader.heard()
        found = _inherited(keeper, fd)
        os.close(fd)
    is_proven = told["reads"] and told["refused"] and found["outcome"] == "proven"
    yield {"statement": "guarded", **told, "outcome": "proven" if is_proven else "refuted"}


def remapped(keeper: Keeper) -> Iterator[Figures]:
    """`remapped`, in one process."""
    with keeper.child("grapher") as grapher:
        told, _ = grapher.heard()
        outcome = "proven" if told.pop("on_the_pool") and told.pop("elsewhere_untouched") else "refuted"
        yield {"statement": "remapped", "outcome": outcome, **told}


def _inherited(keeper: Keeper, fd: int) -> Figures:
    """What an heir finds behind a descriptor."""
    with keeper.child("heir", (fd,)) as heir:
        try:
            told, _ = heir.heard()
        except Fault as fault:
            # The driver knows no such memory any more: that is an answer. A missing package has been noticed earlier.
            refuted = fault.told["outcome"] == "unsupported"
            return fault.told | {"outcome": "refuted" if refuted else "failed"}
    return {"outcome": "proven" if told.pop("same") else "refuted", **told}


def _ms(began_s: float) -> float:
    return round(1000 * (time.monotonic() - began_s), 2)


def proofs(keeper: Keeper) -> Iterator[Figures]:
    """All statements' figures, in the order of the head of this file."""
    outcomes: Figures = {}
    for name, prove in (
        ("outlives", outlives),
        ("anchored", lambda keeper: outlives(keeper, anchored=True)),
        ("silent", silent),
        ("guarded", guarded),
        ("remapped", remapped),
    ):
        if name == "anchored" and outcomes.get("outlives") != "refuted":
            continue
        try:
            for figures in prove(keeper):
                outcomes[figures["statement"]] = figures["outcome"]
                yield figures
        except Fault as fault:
            yield {"statement": name, **fault.told}


def main(make_driver: MakeDriver | None = None) -> int:
    """The command.

    Args:
        make_driver: what stands in for NVIDIA's bindings.
    """
    codes = []
    for figures in proofs(Keeper(make_driver)):
        told = figures if figures["outcome"] != "refuted" else {"then": THEN[figures["statement"]]} | figures
        if told.get("then") == ANCHOR and figures["outcome"] == "refuted":
            told["then"] = THEN["anchored"]
        print(json.dumps(told), flush=True)
        codes.append(EXIT_CODES[str(figures["outcome"])])
    return next((code for code in (1, 3, 2) if code in codes), 0)


if __name__ == "__main__":
    sys.exit(main())
