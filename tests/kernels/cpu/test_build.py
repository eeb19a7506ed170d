"""Which instruction set is chosen, and how its kernels come to be."""

import multiprocessing
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from kernels.cpu import ISA_VARIABLE, IsaError, load
from kernels.cpu.build import SOURCES, BuildError, build, library_file, openmp_runtime
from kernels.cpu.isa import ISAS, choose_isas, processor_flags
from tests.kernels.cpu.helpers import lowest_runnable

EVERYTHING = frozenset(flag for isa in ISAS for flag in isa.needs)
BY_NAME = {isa.name: isa for isa in ISAS}


def names(flags: frozenset[str], asked: str = "") -> list[str]:
    return [isa.name for isa in choose_isas(flags, {ISA_VARIABLE: asked}).candidates]


def test_the_best_comes_first_and_lower_ones_after_it() -> None:
    assert names(EVERYTHING) == ["amx", "avx512", "avx2"]
    assert names(EVERYTHING - {"amx_bf16"}) == ["avx512", "avx2"]
    assert names(EVERYTHING - {"avx512_bf16"}) == ["avx2"]
    assert names(EVERYTHING - {"fma"}) == []
    assert "AVX2" in choose_isas(frozenset(), {}).reason


def test_a_lower_one_can_be_asked_for() -> None:
    assert names(EVERYTHING, "avx2") == ["avx2"]
    assert names(EVERYTHING, "amx-emulated") == ["amx-emulated"]
    assert names(EVERYTHING, "torch") == []
    with pytest.raises(IsaError, match="BATON_CPU_ISA=amx: this processor cannot run it; there are avx2, torch"):
        names(BY_NAME_NEEDS_AVX2, "amx")
    with pytest.raises(IsaError, match="BATON_CPU_ISA=sse: there is no such one; there are avx2, torch"):
        names(BY_NAME_NEEDS_AVX2, "sse")


BY_NAME_NEEDS_AVX2 = frozenset(BY_NAME["avx2"].needs)


def test_flags_of_the_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert processor_flags(cpuinfo) == {"fpu", "avx2", "fma"}
    assert processor_flags(tmp_path / "missing") == frozenset()


def test_torch_can_be_asked_for() -> None:
    loaded = load(1, pytest.fail, {ISA_VARIABLE: "torch"})
    assert (loaded.kernels, loaded.isa, loaded.problem) == (None, "torch", None)


def test_other_sources_make_another_library(tmp_path: Path) -> None:
    isa, runtime = BY_NAME["avx2"], openmp_runtime()
    shutil.copytree(SOURCES, tmp_path / "csrc")
    assert library_file(isa, runtime, tmp_path / "csrc") == library_file(isa, runtime)
    (tmp_path / "csrc" / "simd.h").write_text("// changed")
    assert library_file(isa, runtime, tmp_path / "csrc") != library_file(isa, runtime)


def test_environments_with_the_same_runtime_share_a_library(tmp_path: Path) -> None:
    isa, runtime = BY_NAME["avx2"], openmp_runtime()
    copied = Path(shutil.copy(runtime, tmp_path))
    assert library_file(isa, copied) == library_file(isa, runtime)
    with copied.open("ab") as file:
        file.write(b"another")
    assert library_file(isa, copied) != library_file(isa, runtime)


def build_and_report(isa_name: str, results: "multiprocessing.Queue[tuple[str, int]]") -> None:
    said: list[str] = []
    library = build(BY_NAME[isa_name], said.append)
    results.put((str(library), sum("building the CPU kernels" in line for line in said)))


@pytest.mark.slow
def test_processes_that_build_at_once_build_once_and_later_ones_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\nexec g++ "$@" -O0\n')  # what it makes is loaded and not run
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=build_and_report, args=(lowest_runnable(), results)) for _ in range(3)]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert len({path for path, _ in outcomes}) == 1
    assert sum(lines for _, lines in outcomes) == 1
    loaded = load(1, pytest.fail, {ISA_VARIABLE: lowest_runnable()})  # a later one finds it
    assert loaded.kernels is not None
    assert loaded.problem is None
    library = build(BY_NAME[loaded.isa], pytest.fail)
    assert str(library) in {path for path, _ in outcomes}
    assert sorted(path.name for path in library.parent.iterdir()) == ["kernels.so", "lock"]


def test_without_a_compiler_torch_runs_and_says_what_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lowest_runnable()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "/nowhere/g++")
    loaded = load(1, pytest.fail, {})
    assert (loaded.kernels, loaded.isa) == (None, "torch")
    assert loaded.problem is not None
    assert "no C++ compiler /nowhere/g++" in loaded.problem
    assert "plain torch runs instead" in loaded.problem


def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'flag not known'; exit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(BuildError, match="flag not known"):
        build(BY_NAME["avx2"], lambda line: None)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "baton").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BuildError, match="cannot be kept"):
        build(BY_NAME["avx2"], lambda line: None)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
def test_the_code_for_amx_compiles_to_tiles() -> None:
    """No test runs it where there is no AMX; the emulation does, and differs in the macros of tiles.h only."""
    library = build(BY_NAME["amx"], print)
    listing = subprocess.run(["objdump", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    for instruction in ("ldtilecfg", "tileloadd", "tdpbf16ps", "tdpbsud", "tilestored", "tilerelease"):
        assert instruction in listing


def test_there_is_one_pool_of_threads() -> None:
    loaded = load(2, print, {ISA_VARIABLE: lowest_runnable()})
    assert loaded.kernels is not None
    loaded.kernels.read_memory(torch.ones(2**20))
    maps = Path("/proc/self/maps").read_text()
    runtimes = {line.split()[-1] for line in maps.splitlines() if "libgomp" in line or "libiomp" in line}
    assert runtimes == {str(openmp_runtime())}
