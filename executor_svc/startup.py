"""From options to an executor that can take a plan at once."""

import os
import socket
import time
from dataclasses import dataclass
from typing import Any

import torch

from common import __version__
from common import messages as m
from common.errors import BatonError
from common.logging import get_logger
from common.model_files import model_name, resolve_model
from common.plan import ExecutorLimits
from executor_svc.attention import KVGeometry, TorchBackend
from executor_svc.config import Qwen3Config, read_config
from executor_svc.kv_cache import available_memory, choose_max_model_len, choose_num_blocks
from executor_svc.model import Qwen3, Qwen3Weights
from executor_svc.runner import Runner
from executor_svc.weights import Checkpoint, load_weights, stored_dtype
from kernels import reference

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

log = get_logger("executor")


@dataclass(frozen=True)
class ExecutorOptions:
    """What an operator can choose; None leaves the choice to the executor.

    Attributes:
        model: folder or hub id; None is the embedded demo model.
        name: in the fleet; None is host and process id.
        dtype: of weights, activations and KV cache: `auto`, `float32`, `bfloat16` or `float16`.
        device: `cpu`.
        block_size: positions in a KV block.
        num_blocks: in the KV pool.
        kv_cache_memory_gib: GiB for the KV pool, if num_blocks is None.
        max_num_seqs: rows in a plan.
        max_batch_tokens: tokens in a plan.
        max_model_len: positions in a sequence; None is the model's own limit, or the pool if that is smaller.
        threads: torch computes with; None is one for each CPU this process may use.
    """

    model: str | None = None
    name: str | None = None
    dtype: str = "auto"
    device: str = "cpu"
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory_gib: float | None = None
    max_num_seqs: int = 64
    max_batch_tokens: int = 2048
    max_model_len: int | None = None
    threads: int | None = None


def start_executor(options: ExecutorOptions) -> tuple[Runner[Any], m.Hello]:
    """Load the model, allocate the pool, warm up.

    Raises:
        CheckpointError: the model cannot be served.
        BatonError: the pool does not fit the memory, or the options contradict the model.
    """
    threads = options.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    device = torch.device(options.device)
    config, weights, fingerprint = _load_model(options, device, threads)
    dtype = weights.embedding.dtype

    geometry = KVGeometry(config.num_layers, config.num_kv_heads, config.head_dim, options.block_size, dtype)
    available_bytes = available_memory()
    num_blocks = choose_num_blocks(
        geometry,
        num_blocks=options.num_blocks,
        memory_gib=options.kv_cache_memory_gib,
        available_bytes=available_bytes,
        max_num_seqs=options.max_num_seqs,
        max_model_len=options.max_model_len or config.max_positions,
    )
    max_model_len = choose_max_model_len(options.max_model_len, config.max_positions, num_blocks, options.block_size)
    limits = ExecutorLimits(
        num_blocks=num_blocks,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        max_batch_tokens=options.max_batch_tokens,
        max_model_len=max_model_len,
        vocab_size=config.vocab_size,
    )
    pool_bytes = num_blocks * geometry.block_bytes
    pool = {"blocks": num_blocks, "block_size": options.block_size, "gib": round(pool_bytes / 2**30, 3)}
    log.info("pool", **pool, max_model_len=max_model_len)
    if pool_bytes > available_bytes:  # the system grants it, and kills the process once it is filled
        log.warning("the pool is larger than the memory", available_gib=round(available_bytes / 2**30, 3))
    runner = _make_runner(config, weights, geometry, limits, device)
    hello = m.Hello(
        executor=options.name or f"{socket.gethostname()[:100]}-{os.getpid()}",
        build=__version__,
        fingerprint=fingerprint,
        dtype=str(dtype).removeprefix("torch."),
        device=options.device,
        pid=os.getpid(),
        **vars(limits),
    )
    return runner, hello


def _load_model(options: ExecutorOptions, device: torch.device, threads: int) -> tuple[Qwen3Config, Qwen3Weights, str]:
    start = time.monotonic()
    folder = resolve_model(options.model, weights=True)
    config = read_config(folder)
    with Checkpoint(folder) as checkpoint:
        dtype = _choose_dtype(options, checkpoint, config)
        weights, fingerprint = load_weights(checkpoint, config, dtype, device)
    log.info(
        "model loaded",
        model=model_name(options.model),
        seconds=round(time.monotonic() - start, 2),
        parameters=weights.num_parameters,
        dtype=str(dtype).removeprefix("torch."),
        threads=threads,
        fingerprint=fingerprint,
    )
    return config, weights, fingerprint


def _choose_dtype(options: ExecutorOptions, checkpoint: Checkpoint, config: Qwen3Config) -> torch.dtype:
    if options.dtype != "auto":
        return DTYPES[options.dtype]
    if options.model is None and options.device == "cpu":
        return torch.float32  # the demo model is small; like this it is exact, and no slower
    return stored_dtype(checkpoint, config)


def _make_runner(
    config: Qwen3Config, weights: Qwen3Weights, geometry: KVGeometry, limits: ExecutorLimits, device: torch.device
) -> Runner[Any]:
    try:
        backend = TorchBackend(geometry, limits, device)
    except RuntimeError as error:  # torch's way to say out of memory on a CPU
        gib = limits.num_blocks * geometry.block_bytes / 2**30
        raise BatonError(f"the KV pool of {gib:.2f} GiB cannot be allocated; ask for fewer blocks") from error
    model = Qwen3(
        config,
        weights,
        reference,
        backend,
        max_model_len=limits.max_model_len,
        max_batch_tokens=limits.max_batch_tokens,
        max_num_seqs=limits.max_num_seqs,
    )
    runner = Runner(model, reference, backend, limits, device)
    runner.warm_up()
    return runner
