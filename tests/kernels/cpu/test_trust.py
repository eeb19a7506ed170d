"""Which libraries are loaded: none that another user could have put there, and a damaged one ends nobody."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kernels.cpu import ISA_VARIABLE, load
from kernels.cpu.build import BuildError, build, library_file, openmp_runtime
from kernels.cpu.isa import ISAS
from kernels.cpu.trust import why_untrusted
from tests.kernels.cpu.helpers import lowest_runnable

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library in the cache that says when it is loaded, and has none of the functions. There is no compiler."""
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    isa = next(isa for isa in ISAS if isa.name == lowest_runnable())
    library = library_file(isa, openmp_runtime())
    library.parent.mkdir(parents=True)
    source = tmp_path / "evil.cpp"
    source.write_text(
        '#include <fcntl.h>\n__attribute__((constructor)) void run() { creat("%s", 0600); }\n' % (tmp_path / "it ran")
    )
    subprocess.run(["g++", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    library.chmod(0o755)
    monkeypatch.setenv("CXX", "/nowhere/g++")
    return library


def outcome(planted: Path) -> tuple[str | None, bool]:
    """What `load` says was wrong, and whether the library ran. Torch computes in any case."""
    loaded = load(1, pytest.fail, {ISA_VARIABLE: lowest_runnable()})
    assert (loaded.kernels, loaded.isa) == (None, "torch")
    return loaded.problem, (planted.parents[4] / "it ran").exists()


@needs_root
def test_a_library_of_another_user_is_not_loaded(planted: Path) -> None:
    os.chown(planted, NOBODY, NOBODY)
    problem, ran = outcome(planted)
    assert f"{planted} belongs to user {NOBODY}, not to root or user 0" in str(problem)
    assert not ran


@needs_root
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_nor_one_in_a_folder_of_another_user(planted: Path, level: int) -> None:
    os.chown(planted.parents[level], NOBODY, NOBODY)
    problem, ran = outcome(planted)
    assert f"{planted.parents[level]} belongs to user {NOBODY}" in str(problem)
    assert not ran


@pytest.mark.parametrize("level", [None, 0, 1, 2, 3])
def test_nor_one_that_others_could_change(planted: Path, level: int | None) -> None:
    path = planted if level is None else planted.parents[level]
    path.chmod(0o777)
    problem, ran = outcome(planted)
    assert f"{path} can be changed by others (mode 0777)" in str(problem)
    assert not ran


def test_nor_one_behind_a_link_into_a_folder_that_others_could_change(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "cache").rename(tmp_path / "open" / "cache")
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "link"))
    loaded = load(1, pytest.fail, {ISA_VARIABLE: lowest_runnable()})
    assert f"{tmp_path / 'open'} can be changed by others" in str(loaded.problem)
    assert not (tmp_path / "it ran").exists()


def test_nothing_is_written_where_others_could_lay_links(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    planted.unlink()
    planted.with_name("lock").symlink_to(victim)
    isa = next(isa for isa in ISAS if isa.name == lowest_runnable())
    with pytest.raises(BuildError, match="cannot be kept"):  # a link is never followed
        build(isa, pytest.fail)
    planted.parent.chmod(0o777)
    with pytest.raises(BuildError, match="can be changed by others"):
        build(isa, pytest.fail)
    assert victim.read_text() == "precious"


def test_one_without_its_functions_is_removed_and_ends_nobody(planted: Path) -> None:
    problem, ran = outcome(planted)
    assert ran, "it is ours, and was loaded"
    assert "no C++ compiler" in str(problem)
    assert not planted.exists(), "the next start builds it"


@pytest.mark.parametrize("content", [b"", b"\x7fELF nonsense", b"text"])
def test_a_damaged_one_is_removed_and_ends_nobody(planted: Path, content: bytes) -> None:
    planted.write_bytes(content)
    problem, _ = outcome(planted)
    assert "no C++ compiler" in str(problem)
    assert not planted.exists()


def test_what_only_this_user_can_change_is_trusted(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "file"
    file.parent.mkdir(mode=0o700)
    file.write_text("x")
    file.chmod(0o644)
    assert why_untrusted(file) is None
    file.parent.chmod(0o1777)
    assert why_untrusted(file) is None, "in a folder such as /tmp others can touch only what is theirs"
    file.chmod(0o664)
    assert (why_untrusted(file) is None) == (os.getegid() == 0), "root's group is root"
    assert "cannot be looked at" in str(why_untrusted(tmp_path / "missing"))


def test_others_may_read_new_folders_and_libraries_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new" / "cache"))
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ntouch "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    umask = os.umask(0)
    try:
        library = build(next(isa for isa in ISAS if isa.name == lowest_runnable()), lambda line: None)
    finally:
        os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in (library, library.parent, tmp_path / "new")} == {0o755}
