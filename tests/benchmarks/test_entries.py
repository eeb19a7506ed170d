"""Each benchmark is called by its flat path from any folder, and starts the module of its room."""

import subprocess
import sys

import pytest

from tests import ROOT

BENCHMARKS = ROOT / "benchmarks"
NAMES = [
    "autoscale",
    "batches",
    "bits",
    "chat",
    "constraints",
    "conversation",
    "cpu",
    "cpu_kernels",
    "embeddings",
    "failover",
    "fairness",
    "flood",
    "forced_tokens",
    "gguf",
    "gpu",
    "journal",
    "keeper",
    "kernels",
    "open_requests",
    "page",
    "ray",
    "scheduler",
    "scheduler_micro",
    "service",
    "start",
    "store",
    "storms",
    "turn",
]


def test_each_benchmark_has_an_entry():
    entries = {path.name for path in BENCHMARKS.glob("bench_*.py")}
    assert entries == {path.name for path in BENCHMARKS.glob("*/bench_*.py")} == {f"bench_{name}.py" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_starts_the_module_of_its_name(name):
    text = (BENCHMARKS / f"bench_{name}.py").read_text()
    (module,) = BENCHMARKS.glob(f"*/bench_{name}.py")
    assert f"from benchmarks.{module.parent.name}.bench_{name} import main" in text


@pytest.mark.parametrize("command", [["bench_scheduler.py"], [".", "scheduler.bench_scheduler"]])
def test_it_starts_in_any_folder(command, tmp_path):
    entry, *module = command
    done = subprocess.run(
        [sys.executable, BENCHMARKS / entry, *module, "--help"],
        check=True,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "bench_scheduler" in done.stdout.splitlines()[0]
    assert "--block-size" in done.stdout
