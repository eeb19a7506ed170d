"""How routers read KV events: decoders written from the readers' own definitions, and what a subscriber then knows.

The definitions are those of llm-d-router (`pkg/kvevents/engineadapter/vllm_msgpack.go`, 1c5d598), of Dynamo
(`lib/kv-router/src/zmq_wire/deserialize.rs`, 0917ca2, `types.rs` and `convert.rs`, 2bd0a36), and of vLLM's publisher
before its pull request 42892, which subscribers in Python repeat as structs.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

MAX_UINT64 = 2**64 - 1


class Block(NamedTuple):
    parent: int | None
    tokens: tuple[int, ...]


class Event(NamedTuple):
    """What all three readers make of an event. `blocks` is None unless the event stores them."""

    kind: str
    hashes: tuple[int, ...] = ()
    blocks: tuple[Block, ...] | None = None
    medium: str | None = None


class BlockStored(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


def by_structs(payload: bytes) -> list[Event]:
    batch = msgspec.msgpack.decode(payload, type=Batch)
    events = []
    for event in batch.events:
        match event:
            case BlockStored(hashes, parent, tokens, size, None, medium, None):
                events.append(_stored(hashes, parent, tokens, size, medium))
            case BlockRemoved(hashes, medium):
                events.append(Event("BlockRemoved", tuple(hashes), medium=medium))
            case AllBlocksCleared():
                events.append(Event("AllBlocksCleared"))
            case _:
                raise AssertionError(f"an adapter is named: {event}")
    return events


def as_llm_d(payload: bytes) -> list[Event]:
    """An array of two fields at least; unknown fields at the end are ignored, those that are missing are none."""
    batch = msgspec.msgpack.decode(payload)
    assert isinstance(batch, list)
    assert len(batch) >= 2
    assert isinstance(batch[0], float), "DecodeFloat64"
    rank = batch[2] if len(batch) > 2 else None
    assert rank in (None, 0), "snapshot recovery takes one rank only"
    return [_llm_d_event(event) for event in batch[1]]


def _llm_d_event(event: list[Any]) -> Event:
    tag = event[0]
    if tag == "AllBlocksCleared":
        return Event(tag)
    hashes = [_llm_d_hash(each) for each in event[1]]
    if tag == "BlockRemoved":
        return Event(tag, tuple(hashes), medium=event[2] if len(event) > 2 else None)
    assert tag == "BlockStored", f"unknown vLLM event tag: {tag}"
    assert len(event) >= 5
    fields = event + [None] * (12 - len(event))
    parent = None if fields[2] is None else _llm_d_hash(fields[2])
    assert parent != 0, "0 is no parent"
    assert all(isinstance(token, int) and 0 <= token < 2**32 for token in fields[3])
    assert [fields[i] for i in (5, 7, 8, 9, 10, 11)] == [None] * 6, "no adapter, no extra keys, no group"
    return _stored(hashes, parent, fields[3], fields[4], fields[6])


def _llm_d_hash(raw: Any) -> int:
    """An integer, or the last eight of some bytes."""
    if isinstance(raw, bytes):
        assert 0 < len(raw) <= 64
        return int.from_bytes(raw[-8:], "big")
    assert isinstance(raw, int)
    return raw % 2**64


def as_dynamo(payload: bytes) -> list[Event]:
    """A tuple of exactly three, in which the rank may be none; of an event a fixed beginning, then what is known."""
    ts, events, rank = msgspec.msgpack.decode(payload)
    assert isinstance(ts, float)
    assert rank is None or -(2**31) <= rank < 2**31
    return [_dynamo_event(event) for event in events]


def _dynamo_event(event: list[Any]) -> Event:
    rest = iter(event)
    tag = next(rest)
    if tag == "AllBlocksCleared":
        assert next(rest, None) is None, "a source kind"
        return Event(tag)
    hashes = [_dynamo_hash(each) for each in next(rest)]
    if tag == "BlockRemoved":
        medium = next(rest, None)
        assert list(rest) == [], "metadata"
        return Event(tag, tuple(hashes), medium=medium)
    assert tag == "BlockStored"
    parent, tokens, size = next(rest), next(rest), next(rest)
    lora_id, medium, lora_name, extra_keys = (next(rest, None) for _ in range(4))
    assert (lora_id, lora_name, extra_keys) == (None, None, None)
    assert list(rest) == [], "metadata"
    parent = None if parent is None else _dynamo_hash(parent)
    assert len({parent, *hashes}) == 1 + len(hashes), "it refuses blocks that follow on themselves"
    return _stored(hashes, parent, tokens, size, medium)


def _dynamo_hash(raw: Any) -> int:
    """`i64` or `u64`."""
    assert isinstance(raw, int)
    assert -(2**63) <= raw <= MAX_UINT64
    return raw % 2**64


def _stored(hashes: list[int], parent: int | None, tokens: list[int], size: int, medium: str | None) -> Event:
    assert len(tokens) == size * len(hashes), "a block without its tokens is not published"
    parents = [parent, *hashes[:-1]]
    parts = [tuple(tokens[i * size : (i + 1) * size]) for i in range(len(hashes))]
    blocks = tuple(Block(*each) for each in zip(parents, parts, strict=True))
    return Event("BlockStored", tuple(hashes), blocks, medium)


def read(payload: bytes) -> list[Event]:
    """What is in a batch, about which all readers agree."""
    events = as_llm_d(payload)
    assert as_dynamo(payload) == events
    assert by_structs(payload) == events
    return events


@dataclass
class Subscriber:
    """What a router knows of one place.

    Attributes:
        blocks: by hash.
        num_clears: how often it was told that nothing is there.
        is_strict: whether a block must follow on one that it knows. A block may outlive the one before it, so when all
            is told anew it need not.
    """

    blocks: dict[int, Block] = field(default_factory=dict)
    num_clears: int = 0
    is_strict: bool = True

    def take(self, payload: bytes) -> None:
        for event in read(payload):
            self.apply(event)

    def apply(self, event: Event) -> None:
        assert event.medium == (None if event.kind == "AllBlocksCleared" else "GPU")
        match event.kind:
            case "AllBlocksCleared":
                self.blocks.clear()
                self.num_clears += 1
            case "BlockRemoved":
                for each in event.hashes:
                    del self.blocks[each]  # llm-d would count one down that it does not have
            case "BlockStored":
                assert event.blocks is not None
                for each, block in zip(event.hashes, event.blocks, strict=True):
                    assert each not in self.blocks, "stored twice: llm-d counts that, and waits for two removals"
                    known = block.parent is None or block.parent in self.blocks
                    assert known or not self.is_strict, "llm-d drops a block whose parent it does not know"
                    self.blocks[each] = block

    def match(self, tokens: list[int], block_size: int) -> int:
        """Tokens of a prompt that a router believes to be cached here."""
        by_content = {(block.parent, block.tokens): each for each, block in self.blocks.items()}
        at, parent = 0, None
        while (found := by_content.get((parent, tuple(tokens[at : at + block_size])))) is not None:
            at, parent = at + block_size, found
        return at
