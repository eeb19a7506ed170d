"""One executor of several ranks: rank 0 owns the socket, and hands every plan to the others before it runs it.

The others run plans as rank 0 does, with two threads (`StepLoop`), though nobody hears their answers: the thread that
waits for each step's end notices a kernel that failed.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import timedelta
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from common.constraints import StartedLane
from common.exit_codes import EXIT_CRASHED, EXIT_OK
from common.logging import get_logger
from common.messages import LaneStart
from common.plan import PlanColumns
from common.pooled_rows import PooledRows
from common.prompt_targets import PromptTargets
from common.sampling_columns import SAMPLING_COLUMNS, SamplingColumns
from common.wire import IntArray
from executor_svc.keeper.follower import FollowerThread
from executor_svc.keeper.kept_pool import KeptPool
from executor_svc.model.rank_group import RankGroup
from executor_svc.runner.asked_steps import PendingStep
from executor_svc.runner.runner import Runner
from executor_svc.service.step_loop import QueuedPlan, RankGone, StepLoop

log = get_logger("executor")

_FOR_EVER = timedelta(days=365)  # an idle executor waits for its next plan without a limit
_PACKED_APART = ("sampling", "prompt_targets", "pooled", "lane_starts", "epoch")
_COLUMNS = tuple(column.name for column in fields(PlanColumns) if column.name not in _PACKED_APART)
_TARGET_COLUMNS = tuple(column.name for column in fields(PromptTargets))
_NUM_POOLED = 4  # the columns of pooled rows, and the size of a hidden state
_decoder = msgspec.msgpack.Decoder(tuple[int, list[LaneStart]])
_WORDS = [np.dtype(parameter.dtype).itemsize // 4 for parameter in SAMPLING_COLUMNS.values()]


class PlanChannel:
    """Carries plans from rank 0 to the others, over gloo whatever the model's tensors go over.

    All ranks make one at the same time. If a rank ends, the others' next call raises RankGone.
    """

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo", timeout=_FOR_EVER)

    def send(self, columns: PlanColumns | None) -> None:
        """Rank 0: send the others a plan; None is the end."""
        packed = np.empty(0, dtype=np.int32) if columns is None else pack(columns)
        with _others_are_there():
            dist.broadcast(torch.tensor([len(packed)]), 0, group=self._group)
            if len(packed):
                dist.broadcast(torch.from_numpy(packed), 0, group=self._group)

    def receive(self) -> PlanColumns | None:
        """The others: the next plan, or None at the end."""
        length = torch.empty(1, dtype=torch.int64)
        with _others_are_there():
            dist.broadcast(length, 0, group=self._group)
            if not length.item():
                return None
            packed = torch.empty(int(length.item()), dtype=torch.int32)
            dist.broadcast(packed, 0, group=self._group)
        return unpack(packed.numpy())


@contextmanager
def _others_are_there() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankGone(str(error)) from error


class GroupLeader:
    """Rank 0's runner: a `Runner` to the server.

    Args:
        runner: of rank 0.
        channel: to the other ranks.
    """

    def __init__(self, runner: Runner[Any], channel: PlanChannel) -> None:
        self.limits = runner.limits
        self._runner = runner
        self._channel = channel

    def launch(self, columns: PlanColumns) -> PendingStep:
        """See `Runner.launch`."""
        self._channel.send(columns)
        return self._runner.launch(columns)

    def usable(self) -> bool:
        """Never after a failed step: the other ranks may be waiting in the middle of it."""
        return False

    def close(self) -> None:
        """Let the other ranks end."""
        self._channel.send(None)


class _Follower:
    """Another rank's runner, and the plans that rank 0 hands to it."""

    def __init__(self, runner: Runner[Any], channel: PlanChannel) -> None:
        self.limits = runner.limits
        self.launch = runner.launch
        self.epoch: int | None = None
        self._channel = channel

    def get(self) -> QueuedPlan | None:
        """See `StepSource.get`."""
        columns = self._channel.receive()
        if columns is None:
            return None
        self.epoch = columns.epoch
        return QueuedPlan(columns.epoch, 0, columns)

    def usable(self) -> bool:
        """See `GroupLeader.usable`."""
        return False


def run_in_group(
    runner: Runner[Any],
    group: RankGroup,
    serve: Callable[[GroupLeader], int],
    pool: KeptPool | None = None,
    channel: PlanChannel | None = None,
) -> int:
    """This rank's part in an executor of several: rank 0 runs `serve`, the others follow.

    Args:
        runner: of this rank.
        group: the ranks.
        serve: rank 0's part.
        pool: this rank's memory, if it is kept.
        channel: for the plans; by default all ranks make one.

    Returns:
        The process's exit code, when rank 0 has been told to end or the group is broken.
    """
    channel = channel or PlanChannel()
    watch = None
    if pool is not None:
        places = group.gather([os.getpid(), os.stat("/proc/self/ns/pid").st_ino])
        if group.rank > 0:
            watch = FollowerThread(pool.link, leader_pid(places, group.rank))
    if group.rank == 0:
        leader = GroupLeader(runner, channel)
        exit_code = serve(leader)
        try:
            leader.close()
        except RankGone:
            exit_code = EXIT_CRASHED
    else:
        for number in (signal.SIGTERM, signal.SIGINT):  # torchrun passes them on to every rank; rank 0 acts on them
            signal.signal(number, signal.SIG_IGN)
        exit_code = follow(runner, channel, pool, watch)
    if exit_code == EXIT_CRASHED:  # other ranks may be in an operation that leaving in order would wait for
        os._exit(exit_code)
    if pool is not None:
        pool.release()
    runner.close()
    group.close()
    return exit_code


def leader_pid(places: Sequence[Sequence[int]], rank: int) -> int | None:
    """Return rank 0's process as a rank sees it; None if it is in another PID namespace, where the number is another's.

    Args:
        places: of each rank the process and its PID namespace.
        rank: that looks.
    """
    (pid, namespace), (_, own) = places[0], places[rank]
    return pid if namespace == own else None


def follow(
    runner: Runner[Any], channel: PlanChannel, pool: KeptPool | None = None, watch: FollowerThread | None = None
) -> int:
    """Run what rank 0 runs until it sends the end. Returns the exit code of this rank's process.

    A step that fails ends the process at once, as it does on rank 0.
    """
    if watch is not None:
        watch.start()
    follower = _Follower(runner, channel)
    try:
        StepLoop(follower, follower, lambda: follower.epoch, lambda _: None, pool).run()
    except RankGone as error:
        log.error("the group is broken", error=str(error))
        return EXIT_CRASHED
    if watch is not None:
        watch.leave()
    return EXIT_OK


def pack(columns: PlanColumns) -> IntArray:
    """A plan as one array: the lengths of its columns (-1 of the last: every sample is greedy), then the columns.
    Columns of prompts' targets, and of pooled rows, are empty where it has none."""
    sampling = columns.sampling
    arrays = [getattr(columns, name) for name in _COLUMNS]
    targets = columns.prompt_targets
    arrays += [np.zeros(0, np.int32) if targets is None else getattr(targets, name) for name in _TARGET_COLUMNS]
    pooled = columns.pooled
    arrays += [np.zeros(0, np.int32)] * _NUM_POOLED if pooled is None else _pooled_arrays(pooled)
    arrays.append(_pack_starts(columns))
    lengths = [*map(len, arrays), -1 if sampling is None else len(sampling.seeds)]
    if sampling is not None:
        arrays += [getattr(sampling, name) for name in SAMPLING_COLUMNS]
    return np.concatenate((np.array(lengths, dtype=np.int32), *(array.view(np.int32) for array in arrays)))


def unpack(packed: IntArray) -> PlanColumns:
    """What `pack` was given."""
    num_lengths = len(_COLUMNS) + len(_TARGET_COLUMNS) + _NUM_POOLED + 2
    *lengths, num_sampled = packed[:num_lengths].tolist()
    *arrays, encoded, sampled = np.split(packed[num_lengths:], np.cumsum(lengths))
    *arrays, rows, counts, token_ids, hidden_size = arrays
    columns: dict[str, Any] = dict(zip(_COLUMNS, arrays[: len(_COLUMNS)], strict=True)) | _unpack_starts(encoded)
    targets = PromptTargets(*arrays[len(_COLUMNS) :])
    columns["prompt_targets"] = targets if len(targets.tokens) else None
    columns["pooled"] = PooledRows(rows, counts, token_ids, int(hidden_size[0])) if len(rows) else None
    if num_sampled < 0:
        return PlanColumns(**columns, sampling=None)
    parts = np.split(sampled, np.cumsum(_WORDS[:-1]) * num_sampled)
    # Each part is copied: the seeds' place need not be aligned for numbers of 8 bytes.
    pairs = zip(SAMPLING_COLUMNS.items(), parts, strict=True)
    sampling = SamplingColumns(**{name: part.copy().view(parameter.dtype) for (name, parameter), part in pairs})
    return PlanColumns(**columns, sampling=sampling)


def _pooled_arrays(pooled: PooledRows) -> list[IntArray]:
    return [pooled.rows, pooled.counts, pooled.token_ids, np.array([pooled.hidden_size], np.int32)]


def _pack_starts(columns: PlanColumns) -> IntArray:
    """The epoch and the lanes' starts: how many bytes they take, and these as words."""
    starts = msgspec.msgpack.encode((columns.epoch, [lane.message for lane in columns.lane_starts]))
    return np.frombuffer(len(starts).to_bytes(4, "little") + starts + bytes(-len(starts) % 4), np.int32)


def _unpack_starts(packed: IntArray) -> dict[str, Any]:
    epoch, starts = _decoder.decode(packed[1:].tobytes()[: packed[0]])
    return {"epoch": epoch, "lane_starts": tuple(StartedLane.of(start) for start in starts)}
