"""What a keeper keeps: what it is of, and what operators are told of it."""

from typing import Annotated

from msgspec import Meta

from common.messages.base import Count, Message, Name, Positive

Bytes = Annotated[int, Meta(ge=0, le=2**53)]


class PoolKind(Message, frozen=True):
    """What the bytes of a pool mean: an executor continues a pool of its own kind only.

    Attributes:
        fingerprint, dtype: of the model, as in Hello.
        layout: of the attention backend: its name and version, and the sizes of a block.
        rank, num_ranks: which part of the model's heads.
        device: `cpu`, or the unique id of a GPU: memory of one is of no use to another.
    """

    fingerprint: Name
    dtype: Name
    layout: Annotated[str, Meta(min_length=1, max_length=256)]
    rank: Count = 0
    num_ranks: Positive = 1
    device: Name = "cpu"


class WeightsKind(Message, frozen=True):
    """What weights have in common that can be shared, whatever files they were read from.

    Attributes:
        dtype, quantization: that they are kept in.
        rank, num_ranks: which part of the model.
        packing: how they are laid out, with its version, and the instruction set that this is for.
        device: as of a pool.
    """

    dtype: Name
    quantization: Name
    packing: Name
    rank: Count = 0
    num_ranks: Positive = 1
    device: Name = "cpu"


# --- for operators, and for an executor that needs room on its GPU ---


class KeeperQuery(Message, frozen=True, tag="keeper_query"):
    """What is kept, for whom, since when? Operators need not register."""


class DropKept(Message, frozen=True, tag="drop_kept"):
    """Memory is wanted back.

    Attributes:
        name: beginning of the name of pools without a holder, or of the fingerprint of weights, in use or not; empty
            for all pools without a holder and all weights without a user.
        device: only what is on this device; empty for all devices.
        pools: whether pools, too, and not only weights.
    """

    name: Annotated[str, Meta(max_length=128)] = ""
    device: Annotated[str, Meta(max_length=128)] = ""
    pools: bool = True


class KeptPool(Message, frozen=True):
    """A pool in a report.

    Attributes:
        pool: the first characters of its name.
        holder: name of the executor that holds it; empty if none does.
        since_s: how long it has been held, or without a holder.
    """

    pool: str
    kind: PoolKind
    lease: Count
    num_blocks: Count
    num_bytes: Bytes
    holder: str
    holder_pid: Count
    since_s: float
    num_standbys: Count


class KeptWeights(Message, frozen=True):
    """Weights in a report.

    Attributes:
        num_users: how many executors got or deposited them and still live.
        users: names of some of them.
        idle_s: since when there is no user; 0 while there is one.
    """

    fingerprint: str
    kind: WeightsKind
    num_bytes: Bytes
    num_users: Count
    users: tuple[str, ...]
    idle_s: float


class KeeperReport(Message, frozen=True, tag="keeper_report"):
    """Answer to KeeperQuery. Bytes are sizes of files: of a pool, memory is taken for the blocks that were used.

    Attributes:
        max_bytes, num_bytes: the limit, and what counts for it: what is in the machine's memory, not on a GPU.
    """

    keeper: Name
    pid: Count
    uptime_s: float
    max_bytes: Bytes
    num_bytes: Bytes
    pools: tuple[KeptPool, ...]
    weights: tuple[KeptWeights, ...]


class Dropped(Message, frozen=True, tag="dropped"):
    """Answer to DropKept."""

    num_pools: Count
    num_weights: Count
    num_bytes: Bytes
