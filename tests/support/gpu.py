"""Whether kernels run on a GPU in the tests, or in Triton's interpreter."""

import os
from pathlib import Path

CHOSEN_BY_US = "BATON_TESTS_CHOSE_INTERPRETER"  # a variable, because processes that tests start inherit the choice
# Of NVIDIA's driver, of gVisor and containers (their driver's folder is read-only, the devices are these), and of WSL.
DEVICES = ("nvidiactl", "nvidia[0-9]*", "dxg")


def choose_interpreter(devices: Path = Path("/dev")) -> None:
    """Set TRITON_INTERPRET=1 on a machine without a GPU, unless the variable is set.

    Triton asks once, when it is imported, so this comes before any test is collected. Looking at the devices takes no
    import of torch, which the scheduler's tests have no need of; `contradiction` finds out where it is wrong.
    """
    if "TRITON_INTERPRET" in os.environ or any(next(devices.glob(name), None) for name in DEVICES):
        return
    os.environ |= {"TRITON_INTERPRET": "1", CHOSEN_BY_US: "1"}


def contradiction() -> str | None:
    """Why no verdict on a GPU can come from this process; None if kernels run where they are meant to."""
    import torch

    interpreted, has_gpu = os.environ.get("TRITON_INTERPRET") == "1", torch.cuda.is_available()
    if interpreted and has_gpu and CHOSEN_BY_US in os.environ:
        return (
            f"torch finds {torch.cuda.get_device_name()}, but /dev has none of {', '.join(DEVICES)}, so kernels are "
            "interpreted: start pytest with TRITON_INTERPRET=0"
        )
    if os.environ.get("TRITON_INTERPRET") == "0" and not has_gpu:
        return "TRITON_INTERPRET=0 says that there is a GPU, and torch finds none"
    return None
