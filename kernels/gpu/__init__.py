"""Triton kernels for NVIDIA GPUs. Each has a twin of the same name and signature in `kernels.reference`."""
