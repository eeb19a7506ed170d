"""Tensor-parallel ranks for tests: as threads, of which many start in no time, and as processes over gloo."""

import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.plan import ExecutorLimits
from executor_svc.devices.torch_kernels import TorchBackend, TorchKernels
from executor_svc.model.attention import KVGeometry
from executor_svc.model.checkpoint import Checkpoint
from executor_svc.model.draw import TokenDraw, WholeDraw
from executor_svc.model.families import read_config
from executor_svc.model.model import Decoder
from executor_svc.model.rank_group import RankGroup, join_group
from executor_svc.model.sharding import Shard
from executor_svc.model.vocab_parallel import VocabParallelDraw
from executor_svc.model.weights import load_weights
from executor_svc.runner.runner import Runner
from tests.executor_svc.harness import Driver, poison_cache

CPU = torch.device("cpu")
WAIT_S = 120  # for what takes seconds; a rank that hangs is found out by then


@dataclass
class Meeting:
    """Where threads that are ranks hand each other their tensors."""

    size: int
    tensors: list[Any] = field(init=False)
    barrier: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self.tensors = [None] * self.size
        self.barrier = threading.Barrier(self.size, timeout=WAIT_S)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """What every rank brought."""
        self.tensors[rank] = value
        self.barrier.wait()
        brought = list(self.tensors)
        self.barrier.wait()
        return brought


class ThreadGroup:
    """A `RankGroup` of threads of this process."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank = rank
        self.size = meeting.size
        self._meeting = meeting

    def all_reduce(self, tensor: Tensor) -> None:
        assert tensor.is_contiguous()
        tensor.copy_(sum(self._meeting.exchange(self.rank, tensor.clone())))

    def all_to_all(self, sent: Tensor, sent_rows: list[int], received: Tensor, received_rows: list[int]) -> None:
        assert sent.is_contiguous()
        assert received.is_contiguous()
        parts = [part.clone() for part in sent.split(sent_rows)]  # raises unless the numbers add up
        incoming = [parts[self.rank] for parts in self._meeting.exchange(self.rank, parts)]
        assert [len(part) for part in incoming] == received_rows
        received.copy_(torch.cat(incoming))

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        return [list(row) for row in self._meeting.exchange(self.rank, [int(value) for value in values])]

    def close(self) -> None:
        pass


def in_threads(size: int, function: Callable[[RankGroup], Any]) -> list[Any]:
    """What `function` gives on each of `size` ranks. An error on one of them is raised, and ends the others."""
    meeting = Meeting(size)
    results: list[Any] = [None] * size
    errors: list[Exception] = []

    def run(rank: int) -> None:
        try:
            results[rank] = function(ThreadGroup(meeting, rank))
        except Exception as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def start_rank(
    folder: Path,
    group: RankGroup,
    *,
    num_blocks: int = 64,
    block_size: int = 16,
    max_num_seqs: int = 16,
    max_model_len: int = 512,
    decode_sizes: Sequence[int] = (),
    token_sizes: Sequence[int] = (),
    graphs: Any = None,
) -> tuple[Runner[Any], ExecutorLimits]:
    """A rank's runner on plain torch, in float32, with a KV cache full of NaN."""
    config = read_config(folder)
    shard = Shard.of(config, group.rank, group.size)
    limits = ExecutorLimits(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_batch_tokens=512,
        max_model_len=max_model_len,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        tasks=("generate", "embed", "score"),
    )
    with Checkpoint(folder) as checkpoint:
        weights, _ = load_weights(checkpoint, config, torch.float32, CPU, group)
    geometry = KVGeometry(config.num_layers, shard.num_kv_heads, config.head_dim, block_size, torch.float32)
    backend = TorchBackend(geometry, limits, CPU)
    lengths = {"max_model_len": max_model_len, "max_batch_tokens": 512, "max_num_seqs": max_num_seqs}
    kernels = TorchKernels()
    model = Decoder(weights, kernels, backend, group=group, **lengths)
    whole = WholeDraw(kernels, max_num_seqs, config.vocab_size, CPU)
    draw: TokenDraw = whole
    if group.size > 1:
        draw = VocabParallelDraw(whole, group, shard, config.vocab_size, max_num_seqs, torch.float32, CPU)
    runner = Runner(model, draw, backend, limits, CPU, decode_sizes, token_sizes, graphs=graphs)
    runner.warm_up()
    poison_cache(runner)
    return runner, limits


def generate(
    group: RankGroup, folder: Path, prompts: list[list[int]], new_tokens: int, sampling: dict[str, Any], **options: Any
) -> list[list[int]]:
    """New tokens of every prompt; the steps mix all kinds of rows."""
    return Driver(*start_rank(folder, group, **options), chunk=7).generate(prompts, new_tokens, **sampling)


class GlooRanks:
    """Processes that torch.distributed connects. Each does what it is told, over a pipe."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])  # which imports torch once, and computes nothing
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, port, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def __enter__(self) -> "GlooRanks":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def begin(self, rank: int, function: Callable[..., Any], *arguments: Any) -> None:
        """Call `function(group, *arguments)` there; it must be one of a module."""
        self.pipes[rank].send((function, arguments))

    def result(self, rank: int) -> Any:
        """What it gave; an exception if that is what it raised."""
        assert self.pipes[rank].poll(WAIT_S), f"rank {rank} hangs"
        return self.pipes[rank].recv()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What it gives on every rank."""
        for rank in range(len(self.pipes)):
            self.begin(rank, function, *arguments)
        return [self.result(rank) for rank in range(len(self.pipes))]


def _serve(rank: int, size: int, port: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    group = join_group(CPU)
    while True:
        function, arguments = pipe.recv()
        try:
            pipe.send(function(group, *arguments))
        except Exception as error:
            pipe.send(RuntimeError(str(error)))
