"""The limits of a process's own control groups count, wherever above it they stand."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from common.cgroups import memory_room, paid_cpus

GIB = 2**30
V2 = "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1_CPU = "31 20 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "32 20 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


class Machine:
    """A made tree of /proc and /sys.

    Args:
        groups: lines of /proc/self/cgroup.
        mounts: lines of /proc/self/mountinfo.
    """

    def __init__(self, folder: Path, groups: str = "", mounts: str = "") -> None:
        self.root = folder
        for name, text in (("cgroup", groups), ("mountinfo", mounts)):
            if text:
                self.write(f"/proc/self/{name}", f"{text}\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def limit(self, group: str, *, cpus: float | None = None, gib: float | None = None, used_gib: float = 0) -> None:
        """Set limits of a group of version 2, by its folder."""
        self.write(f"{group}/cpu.max", "max 100000\n" if cpus is None else f"{int(cpus * 100000)} 100000\n")
        self.write(f"{group}/memory.max", "max\n" if gib is None else f"{int(gib * GIB)}\n")
        self.write(f"{group}/memory.current", f"{int(used_gib * GIB)}\n")

    @property
    def cpus(self) -> int:
        """Of 64."""
        return paid_cpus(64, root=self.root)

    @property
    def gib(self) -> float | None:
        room = memory_room(self.root)
        return None if room is None else room / GIB


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 64), ("350000 100000", 3), ("50000 100000", 1), ("9900000 100000", 64)]
)
def test_a_quota_is_rounded_down(tmp_path: Path, quota: str, expected: int) -> None:
    machine = Machine(tmp_path, "0::/", V2)
    machine.write("/sys/fs/cgroup/cpu.max", f"{quota}\n")
    assert machine.cpus == expected


def test_processes_share_a_quota(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/", V2)
    machine.limit("/sys/fs/cgroup", cpus=6)
    assert [paid_cpus(4, processes, tmp_path) for processes in (1, 2, 4, 8)] == [4, 3, 1, 1]


def test_a_service_of_systemd(tmp_path: Path) -> None:
    """The limits may be its own, or those of its slice; the smallest one counts, of CPUs and of memory for itself."""
    machine = Machine(tmp_path, "0::/system.slice/baton.service", V2)
    machine.limit("/sys/fs/cgroup/system.slice/baton.service")
    assert (machine.cpus, machine.gib) == (64, None)
    machine.limit("/sys/fs/cgroup/system.slice/baton.service", cpus=4, gib=8, used_gib=1)
    assert (machine.cpus, machine.gib) == (4, 7)
    machine.limit("/sys/fs/cgroup/system.slice", cpus=8, gib=16, used_gib=15)
    assert (machine.cpus, machine.gib) == (4, 1)
    machine.limit("/sys/fs/cgroup/system.slice", cpus=2, gib=64, used_gib=15)
    assert (machine.cpus, machine.gib) == (2, 7)
    machine.limit("/sys/fs/cgroup/user.slice", cpus=1, gib=1)
    assert (machine.cpus, machine.gib) == (2, 7), "another slice"


def test_a_job_of_slurm_with_version_1(tmp_path: Path) -> None:
    groups = "11:memory:/slurm/uid_7/job_42/step_0\n4:cpu,cpuacct:/slurm/uid_7/job_42\n1:name=systemd:/\n0::/"
    machine = Machine(tmp_path, groups, f"{V1_CPU}\n{V1_MEMORY}")
    job = "/sys/fs/cgroup/cpu,cpuacct/slurm/uid_7/job_42"
    machine.write(f"{job}/cpu.cfs_quota_us", "-1\n")
    machine.write(f"{job}/cpu.cfs_period_us", "100000\n")
    assert machine.cpus == 64
    machine.write(f"{job}/cpu.cfs_quota_us", "500000\n")
    memory = "/sys/fs/cgroup/memory/slurm/uid_7"
    for folder, limit in ((f"{memory}/job_42/step_0", 2**63 - 4096), (f"{memory}/job_42", 4 * GIB)):
        machine.write(f"{folder}/memory.limit_in_bytes", f"{limit}\n")
        machine.write(f"{folder}/memory.usage_in_bytes", f"{3 * GIB}\n")
        machine.write(f"{folder}/memory.stat", f"cache 5\ntotal_inactive_file {GIB}\n")
    assert (machine.cpus, machine.gib) == (5, 2)


@pytest.mark.parametrize(
    ("groups", "mounts"),
    [
        ("0::/", V2),  # of its own cgroup namespace
        ("0::/docker/abc", V2.replace(" / /sys", " /docker/abc /sys")),  # the host's namespace
        ("0::/docker/abc", V2),  # likewise, with a mount that says nothing of it
        ("0::/../../other", V2.replace(" / /sys", " /../.. /sys")),  # moved to where the namespace does not reach
        ("0::/", f"29 20 0:26 /of/another /somewhere rw - cgroup2 cgroup2 rw\n{V2}"),
        ("", ""),  # a /proc that hides it
    ],
    ids=["namespace", "path of the host", "not mounted", "beyond the namespace", "of another", "no proc"],
)
def test_a_container(tmp_path: Path, groups: str, mounts: str) -> None:
    machine = Machine(tmp_path, groups, mounts)
    machine.limit("/sys/fs/cgroup", cpus=3, gib=5, used_gib=1)
    machine.limit("/somewhere", cpus=1, gib=1)
    machine.write("/sys/fs/cgroup/memory.stat", f"anon 5\ninactive_file {GIB // 2}\n")
    assert (machine.cpus, machine.gib) == (3, 4.5)


def test_a_container_with_version_1(tmp_path: Path) -> None:
    """Docker mounts the container's own group, whose path is that of the host."""
    mounts = f"{V1_CPU}\n{V1_MEMORY}".replace(" / /sys", " /docker/abc /sys")
    machine = Machine(tmp_path, "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc/inner", mounts)
    machine.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n")
    machine.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    machine.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", f"{2 * GIB}\n")
    machine.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", f"{3 * GIB}\n")
    assert (machine.cpus, machine.gib) == (2, 0)


def test_a_mount_with_a_space(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/a group", V2.replace("/sys/fs/cgroup", r"/control\040groups"))
    machine.limit("/control groups/a group", cpus=2)
    assert machine.cpus == 2


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert (machine.cpus, machine.gib) == (64, None)


@pytest.mark.parametrize(
    ("groups", "mounts"),
    [
        (f"0::/{'x' * 300}", V2),  # as a group that this user may not look at: not only ENOENT
        ("0::/\nnonsense\n7:cpu\n", f"{V2}\nnonsense\n1 2 3 - cgroup2\n31 20 - cgroup\n - \n"),
        ("0::", V2),
    ],
    ids=["cannot be looked at", "other lines", "no path"],
)
def test_what_cannot_be_read_is_left_out(tmp_path: Path, groups: str, mounts: str) -> None:
    machine = Machine(tmp_path, groups, mounts)
    machine.limit("/sys/fs/cgroup", cpus=3, gib=5, used_gib=1)
    machine.write("/sys/fs/cgroup/memory.stat", "nonsense\n\ninactive_file\n")
    assert (machine.cpus, machine.gib) == (3, 4)
    for quota in ("100000 0", "100000", "²00000 100000", ""):
        machine.write("/sys/fs/cgroup/cpu.max", quota)
        assert machine.cpus == 64
    for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.max"):
        (tmp_path / "sys/fs/cgroup" / name).write_bytes(b"\xff")
    assert (machine.cpus, machine.gib) == (64, None)


@contextmanager
def limited_group(controller: str, limits: dict[str, str]) -> Iterator[Path]:
    """A new group of this machine's without a limit, in a new group that has one."""
    with ExitStack() as stack:
        try:
            for mount in (Path("/sys/fs/cgroup", controller), Path("/sys/fs/cgroup")):
                if (mount / "cgroup.procs").exists():
                    break
            outer = mount / f"baton-test-{os.getpid()}"
            for group in (outer, outer / "inner"):
                group.mkdir()
                stack.callback(group.rmdir)
            if (outer / "cgroup.subtree_control").exists():
                (outer / "cgroup.subtree_control").write_text(f"+{controller}")
            [limit] = [name for name in limits if (outer / name).exists()]
            (outer / limit).write_text(limits[limit])
        except (OSError, ValueError) as error:
            pytest.skip(
                f"needs a user who may make control groups (root, where /sys/fs/cgroup can be written): {error}"
            )
        yield outer / "inner"


@pytest.mark.parametrize(
    ("controller", "limits", "question", "answers"),
    [
        ("cpu", {"cpu.max": "300000 100000", "cpu.cfs_quota_us": "300000"}, "paid_cpus(64)", range(1, 4)),
        ("memory", {"memory.max": f"{GIB}", "memory.limit_in_bytes": f"{GIB}"}, "memory_room()", range(1, GIB)),
    ],
)
def test_real_groups(controller: str, limits: dict[str, str], question: str, answers: range) -> None:
    with limited_group(controller, limits) as folder:
        enter = f"open('{folder}/cgroup.procs', 'w').write('0')"
        program = f"import common.cgroups; {enter}; print(common.cgroups.{question})"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert int(done.stdout) in answers
