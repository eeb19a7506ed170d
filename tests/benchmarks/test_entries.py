"""Each benchmark is called by its flat path from any folder, and starts the module of its room.

Docs name these paths, and the packs for a real GPU have them in the keys of their results.
"""

import runpy
import sys

import pytest

from tests import ROOT

BENCHMARKS = ROOT / "benchmarks"
ENTRIES = sorted(path.name for path in BENCHMARKS.glob("bench_*.py"))


def test_each_benchmark_has_an_entry():
    assert sorted(path.name for path in BENCHMARKS.glob("*/bench_*.py")) == ENTRIES


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_runs_the_benchmark_of_its_name(entry, tmp_path, monkeypatch, capsys):
    """As the interpreter would run the file: the folder of the script, and not the root, is on the path."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *(path for path in sys.path if path not in ("", str(ROOT)))])
    monkeypatch.setattr(sys, "argv", [str(BENCHMARKS / entry), "--help"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(sys.argv[0], run_name="__main__")
    assert ended.value.code == 0
    assert entry.removesuffix(".py") in {
        name.rpartition(".")[2] for name in sys.modules if name.startswith("benchmarks.")
    }
    assert entry in capsys.readouterr().out.splitlines()[0]
