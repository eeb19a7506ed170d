"""Freed memory goes back to the system."""

import subprocess
import sys

import pytest

PROGRAM = """
from pathlib import Path
import resource
from common.malloc import LARGE_BLOCK, give_large_blocks_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

give_large_blocks_back()
before = resident()
bytes(8 * LARGE_BLOCK)  # glibc takes the first one that is freed for the size of those to come
kept = []
for _ in range(30):
    blocks = [bytearray(4 * LARGE_BLOCK) for _ in range(8)]
    kept.append(bytearray(100_000))
    del blocks
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_large_blocks_go_back_though_others_stay():
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert int(found.stdout) < 8 * 2**20
