"""Checks of the kernels' arguments: the C++ code gets addresses, and would read past the end of a wrong tensor."""

import torch
from torch import Tensor

from kernels.arguments import Adjustments, KVCache
from kernels.reference.adjustments import mask_words

HEAD_DIMS = (64, 128)
BF16, FLOAT32, INT32, UINT8 = torch.bfloat16, torch.float32, torch.int32, torch.uint8


def check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a CPU tensor has this dtype and shape, and lies dense in its last dimension."""
    if tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_cpu or tensor.stride()[-1] != 1:
        found = f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()} on {tensor.device}"
        raise ValueError(f"{name} is {found}, expected {dtype} {tuple(shape)} on a CPU with last stride 1")


def check_dense(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """The same for a contiguous tensor."""
    check(name, tensor, dtype, shape)
    if not tensor.is_contiguous():
        raise ValueError(f"{name} has strides {tensor.stride()}, it has to be contiguous")


def check_logits(logits: Tensor) -> tuple[int, int]:
    """Rows and tokens of logits, bfloat16 or float32."""
    rows, vocab_size = logits.shape
    check("logits", logits, FLOAT32 if logits.dtype is FLOAT32 else BF16, (rows, vocab_size))
    if vocab_size == 0:
        raise ValueError("logits have no tokens")
    return rows, vocab_size


def check_adjustments(adjustments: Adjustments, rows: int, vocab_size: int) -> None:
    """Raise ValueError unless the arrays fit together, and these rows and tokens. What is in them is not looked at."""
    num_biases = len(adjustments.bias_ids)
    sizes = {"bias_starts": rows + 1, "bias_ids": num_biases, "biases": num_biases, "word_starts": rows + 1}
    sizes |= {"word_offsets": max(len(adjustments.word_offsets), 1), "word_tokens": len(adjustments.word_tokens)}
    for name, column in vars(adjustments).items():
        dtype = FLOAT32 if name in ("presences", "frequencies", "repetitions", "biases") else INT32
        if name == "masks":
            check_dense(name, column, dtype, (len(column), mask_words(vocab_size)))
        else:
            check(name, column, dtype, (sizes.get(name, rows),))


def check_cache(cache: KVCache, head_dim: int) -> tuple[int, int]:
    """KV heads and block size of a contiguous cache."""
    num_blocks, kv_heads, block_size, _ = shape = cache.keys.shape
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim is {head_dim}, expected one of {HEAD_DIMS}")
    check_dense("key_cache", cache.keys, BF16, (num_blocks, kv_heads, block_size, head_dim))
    check_dense("value_cache", cache.values, BF16, shape)
    if num_blocks * block_size > 2**31:
        raise ValueError(f"the cache has {num_blocks * block_size} slots, more than int32 can number")
    return kv_heads, block_size
