"""KV events as vLLM's publisher sends them, so that routers made for vLLM read them. No I/O.

A message has the frames `[topic, sequence number (8 bytes, big endian), batch]`; a batch is the msgpack array
`[ts, events, data_parallel_rank]`. An event is an array that begins with its name. vLLM sends events so up to 0.23, and
as maps of the same fields since its pull request 42892; the routers named here read both, and older ones arrays only.

Written against vLLM's `vllm/distributed/kv_events.py` (0181ea3), llm-d-router's `pkg/kvevents/` (0854a27, and its typed
decoder of 1c5d598) and Dynamo's `lib/kv-router/src/zmq_wire/` (0917ca2, 2bd0a36).
"""

from array import array
from collections.abc import Iterable

import msgspec

from scheduler_svc.core.executor.cache_events import CacheEvent, Cleared, Removed, Stored

MEDIUM = "GPU"  # what vLLM calls the memory that a model computes in, also on a CPU; llm-d takes it as the tier "gpu"
SEQUENCE_BYTES = 8
END_OF_REPLAY = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)


class BlockStored(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Full blocks that are cached now, each following on the one before.

    Attributes:
        block_hashes: 64 bits each.
        parent_block_hash: of the block before the first of them; None at the start of a sequence.
        token_ids: of all blocks, `block_size` of each.
        lora_id, lora_name: always None, adapters are not served.
        medium: where the blocks are.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = MEDIUM
    lora_name: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Blocks that are not cached any more."""

    block_hashes: list[int]
    medium: str | None = MEDIUM


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Nothing is cached."""


class EventBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What happened in a turn.

    Attributes:
        ts: seconds since 1970.
        data_parallel_rank: 0, because a scheduler is one place to a router, with however many executors.
    """

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = 0


_encoder = msgspec.msgpack.Encoder()


def encode_batch(events: Iterable[CacheEvent], ts: float) -> bytes:
    """The batch of a message."""
    return _encoder.encode(EventBatch(ts, [_wire(event) for event in events]))


def _wire(event: CacheEvent) -> BlockStored | BlockRemoved | AllBlocksCleared:
    match event:
        case Stored(keys, parent, token_ids, block_size):
            return BlockStored(keys, parent, array("i", token_ids).tolist(), block_size)
        case Removed(keys):
            return BlockRemoved(keys)
        case Cleared():
            return AllBlocksCleared()
