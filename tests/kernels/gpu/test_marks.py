"""Which tests `-m gpu` chooses; see `conftest.py`."""

import os
import subprocess
import sys

import pytest

from tests import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_what_runs_kernels_is_chosen_where_they_are_compiled(compiled: bool) -> None:
    files = [f"tests/kernels/gpu/{name}.py" for name in ("attention/test_block_tables", "layers/test_rope_store")]
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "--collect-only", "-q", "-m", "gpu", *files]
    environment = {**os.environ, "TRITON_INTERPRET": "0" if compiled else "1"}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    chosen = {line.split("::")[1].split("[")[0] for line in done.stdout.splitlines() if "::" in line}
    assert "test_real_sizes" in chosen, done.stdout + done.stderr
    assert ("test_tables_are_copied_and_nothing_else_is_written" in chosen) == compiled
    assert not {"test_wrong_arguments", "test_offsets_beyond_32_bits"} & chosen
