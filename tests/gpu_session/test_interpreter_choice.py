"""Kernels are interpreted where there is no GPU, and a wrong choice does not pass for a run on a GPU."""

import os

import pytest
import torch

from tests.support import gpu


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    for name in ("TRITON_INTERPRET", gpu.CHOSEN_BY_US):
        monkeypatch.setenv(name, "")  # so that what is set here is undone
        monkeypatch.delenv(name)


def test_a_machine_without_devices_interprets(tmp_path):
    gpu.choose_interpreter(tmp_path)
    assert os.environ["TRITON_INTERPRET"] == "1"


@pytest.mark.parametrize("name", ["nvidiactl", "nvidia0", "dxg"])
def test_a_machine_with_one_does_not(tmp_path, name):
    (tmp_path / name).touch()
    gpu.choose_interpreter(tmp_path)
    assert "TRITON_INTERPRET" not in os.environ


@pytest.mark.parametrize(
    ("given", "has_gpu", "problem"),
    [
        (None, True, "start pytest with TRITON_INTERPRET=0"),
        (None, False, None),
        ("1", True, None),
        ("0", True, None),
        ("0", False, "torch finds none"),
    ],
)
def test_contradictions(tmp_path, monkeypatch, given, has_gpu, problem):
    if given is not None:
        monkeypatch.setenv("TRITON_INTERPRET", given)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    gpu.choose_interpreter(tmp_path)
    found = gpu.contradiction()
    assert found is None if problem is None else problem in found
