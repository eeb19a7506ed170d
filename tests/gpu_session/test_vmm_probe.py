"""The probe of exported GPU memory, with a driver whose allocations are memfds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_driver.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", folder / "libcuda.so.1", source], check=True)
    return folder


def probe(folder, kind=""):
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder), "FAKE_DRIVER": kind}
    command = [sys.executable, ROOT / "tools" / "vmm_probe.py"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)
    return done.returncode, json.loads(done.stdout)


def test_memory_that_outlives_its_maker(driver):
    code, figures = probe(driver)
    assert (code, figures["outcome"], figures["call"], figures["freed"]) == (0, "kept", None, True), figures
    assert figures["bytes"] == 64 * 2**20
    assert figures["import_and_map_ms"] >= 0


def test_memory_that_does_not(driver):
    code, figures = probe(driver, "loses")
    assert (code, figures["outcome"]) == (3, "lost")


def test_a_call_that_the_driver_refuses_is_named(driver):
    code, figures = probe(driver, "refuses")
    assert (code, figures["outcome"]) == (2, "unsupported")
    assert (figures["call"], figures["error"]) == ("cuMemExportToShareableHandle", "CUDA_ERROR_NOT_SUPPORTED")


@pytest.mark.parametrize(
    ("kind", "said"),
    [("dies", "the child ended without a word"), pytest.param("hangs", "a child said nothing", marks=pytest.mark.slow)],
)
def test_a_check_that_gives_no_answer(driver, kind, said):
    code, figures = probe(driver, kind)
    assert (code, figures["outcome"], figures["step"], figures["freed"]) == (1, "failed", "check", None)
    assert said in figures["error"]


def test_a_machine_without_a_driver(tmp_path):
    code, figures = probe(tmp_path)
    assert (code, figures["outcome"], figures["call"]) == (2, "unsupported", "dlopen")
