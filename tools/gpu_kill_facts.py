"""What SIGKILL of a process that writes GPU memory costs, and which sign of its end comes after its last write.

    python -m tools.gpu_kill_facts [--gb 1,20,60] [--pinned-gb 4] [--seconds 110]

Prints a JSON line for each case as it ends. A case is a size and a kind of memory: `vmm` (exported to the keeper, as an
executor's pool is), `malloc` (torch's own), `pinned` (`vmm`, and pages of the host besides). Times are milliseconds
since SIGKILL unless something else is said:

    exiting_ms       the process's first thread has the kernel's flag PF_EXITING
    files_gone_ms    no thread of the process lists a device file in /proc any more
    high_socket_ms   another process sees the end of a socket that the process opened after CUDA's files: as a scheduler
                     sees the end of an executor
    middle_socket_ms another process sees the end of a socket that the process opened after CUDA was initialized, and
                     before it had a context
    low_socket_ms    another process sees the end of a socket that the process opened before all of CUDA's files
    zombie_ms, threads_gone_ms     its first thread has ended; all threads have
    pidfd_ms         its pidfd is readable: what the keeper waits for
    last_write_ms    another process saw the last change of the memory that the process's kernels write
    too_early        signs after which a write was seen. Each of them proves nothing. A sign that is never here may
                     prove that the GPU runs nothing of the process any more
    changed_bytes    of the written memory, that changed later than all that
    heir_ms          from the pidfd until an heir, who had a context before, has mapped the memory and read a value
    same             whether the memory is as its maker left it
    freed_ms         from the close of the last descriptor until the GPU has the memory back; of `malloc` from SIGKILL

`look_us` and `proc_look_us` say how finely the memory and /proc were looked at; `device_files` has the numbers of the
process's descriptors of device files. Linux takes a dying process's descriptors away in the order of their numbers, and
then releases their files in the opposite order, before the process counts as ended (fs/file.c, kernel/task_work.c,
kernel/exit.c; seen on Linux 6.18 with a file whose release takes 0.6 s: a socket above the file ended before, one below
it and the pidfd after, and /proc listed no descriptor from the beginning on). So the high socket should end before the
driver is told of the end, and the low one after all that the driver does then.

Exits with 0 if all cases have their figures, 2 if one was not measured (no time was left, or a call is refused), 1 if
the tool itself failed. **It has not run on a GPU yet**, only over memfds.
"""

import argparse
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator

from tools import gpu_keeper_roles as roles
from tools.gpu_children import Child, Children, Death, Fault, Figures, MakeDriver, has_cuda

GB = 10**9
WATCHED_S = 0.3  # after a death, until the watchers are asked
LEAST_S = 8.0  # that a case may need
STABLE_WITHIN_S = 5.0
EXIT_CODES = {"failed": 1, "unsupported": 2, "skipped": 2}


def killed(children: Children, scale: Child, num_bytes: int, how: str, pinned_bytes: int = 0) -> Figures:
    """Kill a process that has so much memory while it writes. Returns what was seen.

    Args:
        scale: a child that plays `roles.scale`.
        how, pinned_bytes: see `roles.victim`.

    Raises:
        Fault: a child could not do its part.
    """
    with contextlib.ExitStack() as stack:
        victim = stack.enter_context(
            children.child(roles.victim, num_bytes=num_bytes, how=how, pinned_bytes=pinned_bytes)
        )
        made, (*pools, counter, middle, high) = victim.handed()
        socks = [stack.enter_context(socket.socket(fileno=fd)) for fd in (high, middle)]
        stack.callback(os.close, counter)
        memory = stack.enter_context(contextlib.ExitStack())
        for pool in pools:
            memory.callback(os.close, pool)
        watcher = stack.enter_context(children.child(roles.watcher, counter))
        watcher.told()
        witness = stack.enter_context(children.child(roles.witness, pid=victim.pid))
        figures = made | witness.told() | {"keeper_without_cuda": not has_cuda((counter, *pools))}
        with contextlib.ExitStack() as heirs:
            heir = [heirs.enter_context(children.child(roles.heir, pool, num_bytes=num_bytes)) for pool in pools]
            for each in heir:
                each.told()
            held = free(scale)
            death = victim.kill(*socks, victim.sock)
            for each in heir:
                told = each.ask(go=True)
                figures |= {"heir_ms": _ms(death.pidfd, told.pop("seen")), **told}
            if not pools:
                figures |= given_back(scale, held, num_bytes, death.signalled)
            time.sleep(WATCHED_S)
            figures |= _signs(death, watcher.ask(go=True), witness.ask(go=True))
        if pools:
            held, began = free(scale), time.monotonic_ns()
            memory.close()
            figures |= given_back(scale, held, num_bytes, began)
        return figures


def free(scale: Child) -> int:
    """Free bytes of the GPU, when they change no more: contexts that were closed may still be giving theirs back."""
    return int(scale.ask(seconds=STABLE_WITHIN_S)["free"])


def given_back(scale: Child, held: int, num_bytes: int, began: int) -> Figures:
    """Wait until most of so many bytes are free that were not.

    Args:
        held: free bytes before.
        began: when they were let go, in nanoseconds of the monotonic clock.
    """
    least = held + num_bytes * 3 // 4
    told = scale.ask(seconds=max(1.0, min(20.0, 0.5 * scale.left_s())), least=least)
    came_back = told["free"] >= least
    return {"freed": came_back, "freed_ms": _ms(began, told["at"]) if came_back else None}


def _signs(death: Death, watched: Figures, witnessed: Figures) -> Figures:
    """The times of all signs of a death, and those after which a write was seen."""
    signs = {name: at for name, at in witnessed.items() if name != "look_us"}
    signs |= dict(zip(("high_socket", "middle_socket", "low_socket"), death.hung_up, strict=True))
    signs["pidfd"] = death.pidfd
    too_early = [name for name, at in signs.items() if watched["written_after"] > at]
    return {
        **{f"{name}_ms": _ms(death.signalled, at) for name, at in sorted(signs.items(), key=lambda sign: sign[1])},
        "last_write_ms": _ms(death.signalled, watched["written_before"]),
        "too_early": too_early,
        "changed_bytes": watched["changed_bytes"],
        "count": watched["count"],
        "look_us": watched["look_us"],
        "proc_look_us": witnessed["look_us"],
    }


def facts(children: Children, cases: list[tuple[int, str]], pinned_bytes: int) -> Iterator[Figures]:
    """The figures of all cases: a size in bytes and a kind of memory each."""
    with contextlib.ExitStack() as stack:
        scale = None
        for num_bytes, how in cases:
            figures: Figures = {"case": how, "gb": round(num_bytes / GB, 2)}
            try:
                if children.left_s() < LEAST_S:
                    raise Fault({"outcome": "skipped", "error": "no time is left"})
                if scale is None:
                    scale = stack.enter_context(children.child(roles.scale))
                    scale.told()
                yield figures | killed(children, scale, num_bytes, how, pinned_bytes)
            except Fault as fault:
                yield figures | fault.told


def _ms(began: int, at: int) -> float:
    return round((at - began) / 1e6, 3)


def main(arguments: list[str] | None = None, make_driver: MakeDriver | None = None) -> int:
    """The command.

    Args:
        make_driver: what stands in for NVIDIA's bindings.
    """
    parser = argparse.ArgumentParser("python -m tools.gpu_kill_facts")
    parser.add_argument("--gb", default="1,20,60", help="sizes of exported memory")
    parser.add_argument("--pinned-gb", default=4.0, type=float, help="of the host's memory, in the case `pinned`")
    parser.add_argument("--seconds", default=110.0, type=float, help="after which it ends")
    options = parser.parse_args(arguments)
    sizes = [max(1, round(float(size) * GB / roles.PAGE_BYTES)) * roles.PAGE_BYTES for size in options.gb.split(",")]
    middle = sizes[len(sizes) // 2]
    cases = [*((size, "vmm") for size in sizes), (middle, "malloc"), (middle, "pinned")]
    children, codes = Children(roles.play, make_driver, options.seconds), [0]
    for figures in facts(children, cases, round(options.pinned_gb * GB)):
        print(json.dumps(figures), flush=True)
        codes.append(EXIT_CODES.get(figures.get("outcome", ""), 0))
    return next((code for code in (1, 2) if code in codes), 0)


if __name__ == "__main__":
    sys.exit(main())
