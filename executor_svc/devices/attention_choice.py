"""Which kernels attend on a GPU, decided by what each of them takes."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch

from common.errors import BatonError
from common.logging import get_logger
from kernels.gpu.attention.flash_attention import FLASH_DTYPES, FLASH_HEAD_DIMS, LEAST_BLOCK_SIZE, load_flash_attn
from kernels.gpu.attention.plan import HEAD_DIMS

log = get_logger("executor")


@dataclass(frozen=True)
class AttentionKind:
    """A set of attention kernels, and what follows from it.

    Attributes:
        name: as the option `--attention` has it.
        default_block_size: positions in a KV block where the operator chose none.
        heads_side_by_side: the layout of the KV cache, see `GpuBackend`.
    """

    name: str
    default_block_size: int
    heads_side_by_side: bool


FLASH_ATTN = AttentionKind("flash_attn", default_block_size=LEAST_BLOCK_SIZE, heads_side_by_side=True)
TRITON = AttentionKind("triton", default_block_size=16, heads_side_by_side=False)


def check_head_dim(head_dim: int) -> None:
    """Raise BatonError if no kernels for GPUs take such heads."""
    if head_dim not in HEAD_DIMS:
        dims = ", ".join(map(str, HEAD_DIMS))
        raise BatonError(f"the model has head_dim {head_dim}, and kernels for GPUs take {dims}: serve it on a CPU")


def choose_attention(
    wanted: str,
    head_dim: int,
    dtype: torch.dtype,
    block_size: int | None,
    load: Callable[[], ModuleType] = load_flash_attn,
) -> AttentionKind:
    """The kernels called `wanted`; of `auto`, flash-attn's where they take the model and can be imported, else ours.

    The log says what was chosen, and why it is not flash-attn.

    Args:
        wanted: `auto`, `flash_attn` or `triton`.
        head_dim, dtype: of the model and its KV cache.
        block_size: positions in a KV block, the operator's choice, or None.
        load: imports flash-attn.

    Raises:
        BatonError: flash-attn is wanted and cannot serve.
    """
    if wanted == TRITON.name:
        kind, reason = TRITON, "--attention names it"
    else:
        problem = _flash_attn_problem(head_dim, dtype, block_size, load)
        if problem is not None and wanted == FLASH_ATTN.name:
            raise BatonError(f"--attention is flash_attn, but {problem}")
        kind, reason = (FLASH_ATTN, "flash-attn is installed") if problem is None else (TRITON, problem)
        if wanted == FLASH_ATTN.name:
            reason = "--attention names it"
    log.info("attention kernels", attention=kind.name, reason=reason)
    return kind


def _flash_attn_problem(
    head_dim: int, dtype: torch.dtype, block_size: int | None, load: Callable[[], ModuleType]
) -> str | None:
    """Why flash-attn cannot serve, or None if it can."""
    if dtype not in FLASH_DTYPES:
        return f"flash-attn takes bfloat16 and float16, not {str(dtype)[6:]}"
    if head_dim not in FLASH_HEAD_DIMS:
        return f"flash-attn is used for head_dim {' and '.join(map(str, FLASH_HEAD_DIMS))}, not {head_dim}"
    if block_size is not None and (block_size < LEAST_BLOCK_SIZE or block_size & (block_size - 1)):
        return f"flash-attn is used for blocks of a power of two from {LEAST_BLOCK_SIZE} positions, not {block_size}"
    try:
        load()
    except (ImportError, OSError) as error:  # OSError: its binary is for another torch or CUDA
        return str(error)
    return None
