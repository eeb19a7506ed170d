"""Which platform an executor computes on."""

import os

import torch

from common.errors import BatonError
from common.installation import OF_GPUS, require
from executor_svc.devices.cpu import CpuPlatform
from executor_svc.devices.platform import Platform
from executor_svc.options import ExecutorOptions


def choose_platform(options: ExecutorOptions) -> Platform:
    """The platform that the options ask for; with `--device auto` a GPU if this machine has one.

    Raises:
        BatonError: the machine, or what is installed on it, has no such platform.
    """
    has_gpu = torch.cuda.is_available()
    if options.device == "cpu" or (options.device == "auto" and not has_gpu):
        return CpuPlatform(options.threads, pin_threads=options.pin_threads, int8=options.quantization == "int8")
    if not has_gpu:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        among = "" if shown is None else f" among those of CUDA_VISIBLE_DEVICES={shown}"
        raise BatonError(f"--device is {options.device}, and torch {torch.__version__} finds no GPU here{among}")
    if options.quantization != "none":
        raise BatonError(f"--quantization {options.quantization} is for --device cpu: GPUs have no such kernels")
    require(OF_GPUS, "computing on a GPU")
    from executor_svc.devices.gpu import GpuPlatform  # noqa: PLC0415  (Triton takes a second to import)

    return GpuPlatform(options)
