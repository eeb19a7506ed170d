"""The rig's own lock: what a library that is being loaded may call."""

import ctypes
import os
import subprocess
from pathlib import Path

from tests.rig import build

LIBRARY = """
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>

unsigned long rig_count(const char*);
int call_ended;

static void* call(void* nothing) {
  rig_count("kernel");
  return nothing;
}

__attribute__((constructor)) static void while_the_linker_holds_its_lock(void) {
  pthread_t thread;
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 20;
  pthread_create(&thread, 0, call, 0);
  call_ended = pthread_timedjoin_np(thread, 0, &end) == 0;
}
"""


def test_a_thread_calls_for_the_first_time_while_another_one_loads_a_library(tmp_path: Path) -> None:
    """NCCL's watchdog did while flash-attn, whose kernels register themselves, was imported: neither went on."""
    source, library = tmp_path / "library.c", tmp_path / "library.so"
    source.write_text(LIBRARY)
    folder = build.libraries()
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, f"-L{folder}", "-lrig", "-lpthread"], check=True)
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(library), os.RTLD_NOW), "call_ended").value == 1
