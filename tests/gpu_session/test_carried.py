"""What travels: all that Baton needs and a borrowed machine lacks, and how fresh and how large it is."""

import re
from importlib import metadata

from packaging.requirements import Requirement

from tests import ROOT
from tests.gpu_session import carried
from tests.gpu_session.machine import DECIDING, expected_versions, listed_packages

TESTING = ("pytest", "pytest-timeout", "hypothesis")
MACHINE = {"python_version": "3.12", "python_full_version": "3.12.3", "platform_python_implementation": "CPython"}


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def carried_packages():
    text = (ROOT / "tools" / "gpu_session.sh").read_text()
    found = re.search(r"^PACKAGES=\((.*?)\)", text, re.DOTALL | re.MULTILINE)
    # Wheels that are built for the machine.
    return {plain(name) for name in found[1].split()} | {"flash-attn", "msgspec", "pyzmq", "xxhash"}


def needed(names):
    """Packages that these need, and so on, without extras. What the machine has of its own has all that it needs."""
    own = {plain(name) for name in listed_packages()} - carried_packages()
    found, waiting = set(), [plain(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if name in own:
            continue
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": "", **MACHINE}):
                waiting.append(plain(requirement.name))
    return found


def test_all_that_is_needed_is_there_or_travels():
    """fastapi began to need opentelemetry-api, and no service would have started on a GPU machine."""
    there = {plain(name) for name in listed_packages()}
    lacking = needed(["baton-llm", "safetensors", *TESTING]) - there - carried_packages() - {"baton-llm"}
    assert not lacking, f"tools/gpu_session.sh has to carry {sorted(lacking)}"


def test_what_travels_is_needed():
    extra = {"flash-attn", *TESTING}
    assert carried_packages() <= needed(["baton-llm", *TESTING]) | extra


def test_the_versions_that_decide_are_known():
    versions = expected_versions()
    assert set(versions) == {"python", *DECIDING}
    assert all(versions.values())


def test_stale_kernels_are_noticed(tmp_path):
    (tmp_path / "wheels").mkdir()
    assert "No compiled kernels travel" in next(carried.report(tmp_path))
    (tmp_path / carried.CACHE_ARCHIVE).touch()
    (tmp_path / carried.CACHE_STAMP).write_text("of others\n")
    assert "stale" in next(carried.report(tmp_path))
    (tmp_path / carried.CACHE_STAMP).write_text(carried.kernel_sources() + "\n")
    fresh, sizes = carried.report(tmp_path)
    assert "those of the tree" in fresh
    assert "of 50 travel" in sizes
    (tmp_path / "large").write_bytes(b"x" * carried.MOST_BYTES)
    assert "TOO MUCH" in list(carried.report(tmp_path))[1]
    assert "tools/gpu_session.sh pack" in next(carried.report(tmp_path / "missing"))
