"""The proof of what the keeper rests on, and what a kill costs, over memfds (`tests/support/fake_cuda.py`).

`tests/rig/test_keeper_proof.py` has them on the pretended GPU, by NVIDIA's bindings.
"""

import json
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
import uuid

import pytest

from tests import ROOT
from tools.gpu_children import LOWEST, Children, Fault, has_cuda
from tools.gpu_keeper_proof import exit_code

PROGRAM = """
import sys
from tools import gpu_keeper_proof, gpu_kill_facts
from tests.support.fake_cuda import FakeCuda
gpu_keeper_proof.KEPT_BYTES = gpu_keeper_proof.POOL_BYTES = 2**22
gpu_keeper_proof.ROUNDS = 2
sys.exit({tool}.main({arguments}, lambda: FakeCuda(name={name!r}, **{options!r})))
"""


def run(*command, **environment):
    """The exit code of a tool, and its lines by what they are about."""
    done = subprocess.run(
        [sys.executable, *command],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {line.get("statement", line.get("case")): line for line in lines}


def over_memfds(tool, *arguments, **options):
    name = f"fake_cuda_{uuid.uuid4().hex}"
    return run("-c", PROGRAM.format(tool=tool, arguments=list(arguments), name=name, options=options))


def outcomes(found):
    return {name: line["outcome"] for name, line in found.items()}


@pytest.mark.slow
def test_memory_that_outlives_its_maker():
    code, found = over_memfds("gpu_keeper_proof")
    wanted = {"outlives": "proven", "freed": "proven", "silent": "proven", "guarded": "proven", "remapped": "skipped"}
    assert (code, outcomes(found)) == (2, wanted), found  # no graph without torch's CUDA build: it is not settled
    assert found["outlives"]["kill_ms"] > 0
    assert found["freed"]["free_before"] - found["freed"]["free_while_held"] == 2**22
    assert found["freed"]["free_after"] == found["freed"]["free_before"]
    assert found["silent"]["changed_bytes"] == [0, 0]
    assert not any("pidfd" in signs for signs in found["silent"]["too_early"])
    assert found["guarded"]["error"] == "cuMemcpyHtoD failed: CUDA_ERROR_INVALID_VALUE"
    assert not any("then" in line for line in found.values())


@pytest.mark.slow
def test_memory_that_does_not_says_what_to_do():
    code, found = over_memfds("gpu_keeper_proof", loses=True)
    assert code == 2, "a statement was skipped"
    wanted = {"outlives": "refuted", "freed": "moot", "anchored": "refuted"}
    assert {name: found[name]["outcome"] for name in wanted} == wanted
    assert "see `anchored`" in found["outlives"]["then"]
    assert "--no-keep" in found["anchored"]["then"]


@pytest.mark.slow
def test_a_descriptor_that_can_no_longer_be_imported_refutes_as_well():
    _, found = over_memfds("gpu_keeper_proof", fail="cuMemImportFromShareableHandle")
    assert found["outlives"]["outcome"] == "refuted"
    assert found["outlives"]["call"] == "cuMemImportFromShareableHandle"


@pytest.mark.slow
def test_a_call_that_the_driver_refuses_is_named_and_settles_nothing():
    code, found = over_memfds("gpu_keeper_proof", fail="cuMemExportToShareableHandle")
    assert (code, found["outlives"]["outcome"]) == (2, "unsupported")
    assert found["outlives"]["call"] == "cuMemExportToShareableHandle"


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["gpu_keeper_proof", "gpu_kill_facts"])
def test_a_machine_without_a_gpu(tool):
    code, found = run("-m", f"tools.{tool}", CUDA_VISIBLE_DEVICES="")
    assert code == 2
    assert set(outcomes(found).values()) <= {"unsupported", "skipped"}, found


@pytest.mark.slow
def test_what_a_kill_costs():
    code, found = over_memfds("gpu_kill_facts", "--gb", "0.01")
    assert code == 2, "torch's own memory and pinned memory take a GPU"
    assert {name: line.get("outcome") for name, line in found.items()} == {
        "vmm": None,
        "malloc": "skipped",
        "pinned": "skipped",
    }
    facts = found["vmm"]
    assert (facts["same"], facts["freed"], facts["keeper_without_cuda"]) == (True, True, True)
    assert (facts["too_early"], facts["changed_bytes"]) == ([], 0)
    assert facts["count"] > 1
    assert facts["last_write_ms"] <= facts["pidfd_ms"]
    assert facts["high_socket_ms"] <= facts["low_socket_ms"] <= facts["pidfd_ms"] + 5


@pytest.mark.slow
def test_no_case_begins_when_no_time_is_left():
    began = time.monotonic()
    code, found = over_memfds("gpu_kill_facts", "--gb", "0.01", "--seconds", "1")
    assert code == 2
    assert {line["error"] for line in found.values()} == {"no time is left"}
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (["proven", "proven"], 0),
        (["refuted", "moot", "proven"], 3),
        (["refuted", "unsupported"], 2),  # it is asked again
        (["proven", "skipped"], 2),
        (["refuted", "unsupported", "failed"], 1),
    ],
)
def test_what_is_not_settled_does_not_count_as_done(outcomes, code):
    assert exit_code(outcomes) == code


# --- children ---


def play(role, sock, make_driver, fds, arguments):
    role(sock, fds, **arguments)


def say_descriptors(sock, fds):
    numbers = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    open_ = [number for number in numbers if os.path.exists(f"/proc/self/fd/{number}")]  # not that of the listing
    sock.send(json.dumps({"lowest": sock.fileno(), "open": open_, "handed": list(fds)}).encode())


def test_a_child_has_its_socket_and_what_it_was_handed_alone():
    with open(os.devnull) as one, open(os.devnull) as other, open(os.devnull):
        children = Children(play, None, 60)
        with children.child(say_descriptors, one.fileno(), other.fileno()) as child:
            told = child.told()
    assert told["lowest"] == LOWEST
    assert len(told["handed"]) == 2
    assert told["open"] == sorted([0, 1, 2, LOWEST, *told["handed"]])


def hold_a_file(sock, fds):
    """Between a socket with a low number and one with a high number lies a file whose release takes long."""
    slow = os.memfd_create("slow")
    for _ in range(256):
        os.write(slow, b"x" * 2**20)
    keepers, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.dup2(own.fileno(), 900, inheritable=False)
    own.close()
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
    socket.send_fds(sock, [b"{}"], [keepers.fileno()])
    keepers.close()
    time.sleep(100)


def test_a_socket_above_a_file_says_nothing_of_its_release_and_one_below_does():
    """What `gpu_kill_facts` looks at, and why: the kernel releases a dead process's files from the highest down."""
    with Children(play, None, 60).child(hold_a_file) as child:
        _, (fd,) = child.handed()
        with socket.socket(fileno=fd) as high:
            death = child.kill(high, child.sock)
    above, below = death.hung_up
    assert above < below
    assert abs(death.pidfd - below) < below - above, "the pidfd, like the lower socket, comes after the release"


def say_nothing(sock, fds):
    os._exit(0)


def raise_an_error(sock, fds):
    raise ValueError("so")


@pytest.mark.parametrize(("role", "error"), [(say_nothing, "a child ended without a word"), (raise_an_error, "so")])
def test_a_child_that_fails_is_a_fault(role, error):
    with Children(play, None, 60).child(role) as child, pytest.raises(Fault, match=error):
        child.told()


def test_nobody_is_waited_for_when_no_time_is_left():
    began = time.monotonic()
    with Children(play, None, 0.5).child(lambda *_: time.sleep(100)) as child:
        for said in ("a child said nothing for 0", "no time is left"):
            with pytest.raises(Fault, match=said):
                child.told()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("name", ["libcudart.so.13", "libcuda.so.1"])
def test_a_loaded_library_is_no_open_device(tmp_path, name):
    """Importing torch's CUDA build loads libraries, and opens no device."""
    library = tmp_path / name
    library.write_bytes(b"\0" * 4096)
    device = tmp_path / "dev" / "nvidia0"
    device.parent.mkdir()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ):
        assert not has_cuda()
    with device.open("w") as file:
        assert has_cuda()
        assert not has_cuda((file.fileno(),)), "a descriptor of memory that was handed over"
