"""Does what Baton's keeper rests on hold on this GPU? Proves or refutes it, statement by statement.

    python -m tools.gpu_keeper_proof

This process plays the keeper: it never loads CUDA, and holds file descriptors of GPU memory that its children made. The
children (`gpu_keeper_roles.py`) play executors. The statements:

    outlives    memory keeps its content after SIGKILL of the process that made it, if a process without CUDA has a
                descriptor of it; another process maps it by that descriptor
    anchored    only if `outlives` is refuted: the same, if a process with CUDA has imported it, too
    freed       the GPU has the memory back when the last descriptor is closed
    silent      once the pidfd of a killed writer is readable, no byte changes any more, though kernels were queued
    guarded     memory that is mapped for reading alone can be read, and a kernel that writes there fails and changes
                nothing
    remapped    a CUDA graph that was captured over scratch memory replays on the pool that comes to its addresses

Prints a JSON line for each as it ends: `outcome` ("proven", "refuted", "unsupported": a call is refused or a package is
missing, "skipped", "moot": another statement's outcome leaves nothing to ask, or "failed"), times in milliseconds,
sizes in bytes, and in `then` what follows if it was refuted. Exits with 0 if all were proven, 3 if all were settled and
one was refuted, 2 if one was not settled (unsupported or skipped), 1 if the script itself failed.

**It has not run on a GPU yet**, only over memfds (test_keeper_proof.py in tests/gpu_session and in tests/rig).
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator

from tools import gpu_keeper_roles as roles
from tools.gpu_children import Children, Fault, Figures, MakeDriver, failed, has_cuda
from tools.gpu_kill_facts import free, given_back, killed

KEPT_BYTES = 2 * 2**30  # far above what contexts that come and go take
POOL_BYTES = 64 * 2**20  # where only the content matters
ROUNDS = 5  # in which a writer is killed

THEN = {
    "outlives": "a bare descriptor does not keep GPU memory: see `anchored`",
    "anchored": "no process can keep GPU memory for another: on a GPU executors keep their pools to themselves "
    "(--no-keep), and a swap recomputes",
    "freed": "a pool that is dropped does not come back while the keeper lives: the keeper (or its anchor process for "
    "the GPU) must be started again after each drop",
    "silent": "an executor's pidfd is no proof that its kernels have ended: after a kill no executor goes on with its "
    "pool (the driver's list of processes proves even less, see docs/keeper.md)",
    "guarded": "a stray kernel of one executor can spoil the weights of all: until a driver guards them, executors on "
    "GPUs keep their weights to themselves",
    "remapped": "a standby cannot capture its graphs before it has the pool: it captures them after the lease, or runs "
    "kernel by kernel until then",
}
ANCHOR = (
    "a bare descriptor is not enough: the keeper needs a process for each GPU that uses CUDA and has imported each "
    "descriptor, without a mapping, as Dynamo's GPU memory service does; see docs/gpu.md"
)
EXIT_CODES = {"failed": 1, "unsupported": 2, "skipped": 2, "refuted": 3, "proven": 0, "moot": 0}


def outlives(children: Children, anchored: bool = False) -> Iterator[Figures]:
    """`outlives` and `freed`, or `anchored`."""
    with contextlib.ExitStack() as stack:
        scale = stack.enter_context(children.child(roles.scale))
        scale.told()
        before = free(scale)
        memory = stack.enter_context(contextlib.ExitStack())
        with children.child(roles.maker, num_bytes=KEPT_BYTES) as maker:
            figures, (fd,) = maker.handed()
            memory.callback(os.close, fd)
            if has_cuda((fd,)):
                raise failed("the process that plays the keeper has CUDA, so it is no keeper")
            if anchored:
                anchor = stack.enter_context(children.child(roles.anchor, fd))
                anchor.told()
            death = maker.kill()
            figures["kill_ms"] = round((death.pidfd - death.signalled) / 1e6, 2)
        found = _inherited(children, fd, KEPT_BYTES)
        if anchored:
            yield {"statement": "anchored", **figures, **found, "then": ANCHOR}
            return
        yield {"statement": "outlives", **figures, **found}
        held, began = free(scale), time.monotonic_ns()
        figures = {"statement": "freed", "free_before": before, "free_while_held": held}
        if found["outcome"] != "proven":  # then nothing is said about its coming back
            yield figures | {"outcome": "moot"}
            return
        if before - held < KEPT_BYTES * 3 // 4:
            raise failed(f"{KEPT_BYTES} bytes are kept, and free memory went from {before} to {held} bytes")
        memory.close()
        back = given_back(scale, held, KEPT_BYTES, began)
        yield figures | back | {"outcome": "proven" if back["freed"] else "refuted", "free_after": free(scale)}


def silent(children: Children) -> Iterator[Figures]:
    """`silent`: several writers are killed, one after the other."""
    with children.child(roles.scale) as scale:
        scale.told()
        rounds = [killed(children, scale, POOL_BYTES, "vmm") for _ in range(ROUNDS)]
    if any(each["count"] <= 1 for each in rounds):
        raise failed("the writer writes nothing, so its end says nothing")
    is_silent = not any("pidfd" in each["too_early"] or each["changed_bytes"] for each in rounds)
    names = ("pidfd_ms", "last_write_ms", "look_us", "changed_bytes", "too_early")
    figures = {name: [each[name] for each in rounds] for name in names}
    outcome = "proven" if is_silent else "refuted"
    yield {"statement": "silent", "outcome": outcome, "writes": rounds[0]["writes"], **figures}


def guarded(children: Children) -> Iterator[Figures]:
    """`guarded`: a process reads what it may only read, and tries to write it."""
    with children.child(roles.maker, num_bytes=POOL_BYTES) as maker, contextlib.ExitStack() as stack:
        _, (fd,) = maker.handed()
        stack.callback(os.close, fd)
        with children.child(roles.reader, fd, num_bytes=POOL_BYTES) as reader:
            told = reader.told()
        found = _inherited(children, fd, POOL_BYTES)
    is_proven = told["reads"] and told["refused"] and found["outcome"] == "proven"
    yield {"statement": "guarded", **told, "outcome": "proven" if is_proven else "refuted"}


def remapped(children: Children) -> Iterator[Figures]:
    """`remapped`, in one process."""
    with children.child(roles.grapher, num_bytes=POOL_BYTES) as grapher:
        told = grapher.told()
        is_proven = told["on_the_pool"] and told["elsewhere_untouched"]
        yield {"statement": "remapped", "outcome": "proven" if is_proven else "refuted", **told}


def _inherited(children: Children, fd: int, num_bytes: int) -> Figures:
    """What an heir finds behind a descriptor."""
    with children.child(roles.heir, fd, num_bytes=num_bytes) as heir:
        figures = heir.told()
        began = time.monotonic_ns()
        try:
            told = heir.ask(go=True)
        except Fault as fault:
            # The driver knows no such memory any more: that is an answer. A missing package has been noticed earlier.
            refuted = fault.told["outcome"] == "unsupported"
            return figures | fault.told | {"outcome": "refuted" if refuted else "failed"}
        figures["heir_ms"] = round((told.pop("seen") - began) / 1e6, 2)
    return {"outcome": "proven" if told.pop("same") else "refuted", **figures, **told}


def proofs(children: Children) -> Iterator[Figures]:
    """All statements' figures, in the order of the head of this file."""
    outcomes: Figures = {}
    for name, prove in (
        ("outlives", outlives),
        ("anchored", lambda children: outlives(children, anchored=True)),
        ("silent", silent),
        ("guarded", guarded),
        ("remapped", remapped),
    ):
        if name == "anchored" and outcomes.get("outlives") != "refuted":
            continue
        try:
            for figures in prove(children):
                outcomes[figures["statement"]] = figures["outcome"]
                yield figures
        except Fault as fault:
            yield {"statement": "freed" if name == "outlives" and name in outcomes else name, **fault.told}


def main(arguments: list[str] | None = None, make_driver: MakeDriver | None = None) -> int:
    """The command.

    Args:
        make_driver: what stands in for NVIDIA's bindings.
    """
    parser = argparse.ArgumentParser("python -m tools.gpu_keeper_proof")
    parser.add_argument("--seconds", default=110.0, type=float, help="after which it ends")
    options = parser.parse_args(arguments)
    outcomes = []
    for figures in proofs(Children(roles.play, make_driver, options.seconds)):
        told = figures if figures["outcome"] != "refuted" else {"then": THEN[figures["statement"]]} | figures
        if told.get("then") == ANCHOR and figures["outcome"] == "refuted":
            told["then"] = THEN["anchored"]
        print(json.dumps(told), flush=True)
        outcomes.append(str(figures["outcome"]))
    return exit_code(outcomes)


def exit_code(outcomes: Iterable[str]) -> int:
    """What the command exits with: 0 if all is proven; else 1 before 2 before 3, see `EXIT_CODES`."""
    codes = {EXIT_CODES[outcome] for outcome in outcomes}
    return next((code for code in (1, 2, 3) if code in codes), 0)


if __name__ == "__main__":
    sys.exit(main())
