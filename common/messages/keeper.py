"""What executors and operators say to a machine's keeper, and its answers. Descriptors of files travel beside them.

A message is one packet of a unix socket: `[tag, field, ...]` in msgpack. The comments say which descriptors come along.
"""

from typing import Annotated, Literal

from msgspec import Meta

from common.messages.base import Count, Message, Name, Positive, Text

KEEPER_VERSION = 1
MAX_PACKET_BYTES = 2**16
MAX_POOLS_REPORTED = 256

Bytes = Annotated[int, Meta(ge=0, le=2**53)]
Lease = Annotated[int, Meta(ge=1, le=2**53)]
PoolName = Annotated[str, Meta(min_length=32, max_length=32)]
SourceKey = Annotated[str, Meta(max_length=64)]
HolderState = Literal["serving", "seeking", "stuck"]


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


# --- to the keeper ---


class Register(Message, frozen=True, tag="register"):
    """The first message of a connection. Beside it: a pidfd of the sender, made by itself.

    Attributes:
        version: `KEEPER_VERSION` of the sender.
        name: of the executor, for operators.
        pid: in its own namespace, for operators.
    """

    version: Count
    name: Name
    pid: Count


class FindPool(Message, frozen=True, tag="find_pool"):
    """Which number of blocks has a pool of this kind that could be leased, now or once its holder is gone?

    Attributes:
        num_blocks: only pools of so many; 0 for any.
    """

    kind: PoolKind
    num_blocks: Count = 0


class LeasePool(Message, frozen=True, tag="lease_pool"):
    """Give me a pool that has no holder.

    Attributes:
        wait: answer when there is one; the sender is a standby until then.
    """

    kind: PoolKind
    num_blocks: Positive
    wait: bool = False


class DepositPool(Message, frozen=True, tag="deposit_pool"):
    """Keep this pool, whose holder I am. Beside it: the memory, and its tag page (`executor_svc/keeper/tag.py`).

    Attributes:
        pool, lease: of one that an earlier keeper kept; empty and 0 for a new one.
    """

    kind: PoolKind
    num_blocks: Positive
    num_bytes: Bytes
    pool: Annotated[str, Meta(max_length=32)] = ""
    lease: Annotated[int, Meta(ge=0, le=2**53)] = 0


class FindWeights(Message, frozen=True, tag="find_weights"):
    """Give me weights, by the model's fingerprint or by the files they would be read from; the other one is empty."""

    kind: WeightsKind
    fingerprint: Annotated[str, Meta(max_length=128)] = ""
    source: SourceKey = ""


class DepositWeights(Message, frozen=True, tag="deposit_weights"):
    """Keep these weights. Beside it: the memory, sealed. A second deposit of the same weights adds its source.

    Attributes:
        source: hash over the files that they were read from: which files, and in which state. Empty for none.
    """

    kind: WeightsKind
    fingerprint: Name
    num_bytes: Bytes
    source: SourceKey = ""


class Alive(Message, frozen=True, tag="holder_alive"):
    """Sent every `HEARTBEAT_INTERVAL_S` by an executor.

    Attributes:
        state: `serving` in an epoch, `seeking` a scheduler, or `stuck`: computing a step of an epoch that has ended.
    """

    state: HolderState


class KeeperQuery(Message, frozen=True, tag="keeper_query"):
    """What is kept, for whom, since when? Operators need not register."""


class DropKept(Message, frozen=True, tag="drop_kept"):
    """An operator wants memory back: pools without a holder, and weights. Beside no descriptor.

    Attributes:
        name: beginning of a pool's name or of a fingerprint; empty for all.
    """

    name: Annotated[str, Meta(max_length=128)] = ""


ToKeeper = Register | FindPool | LeasePool | DepositPool | FindWeights | DepositWeights | Alive | KeeperQuery | DropKept


# --- from the keeper ---


class Registered(Message, frozen=True, tag="registered"):
    """Answer to Register.

    Attributes:
        keeper: random, another one in each life of a keeper.
        can_kill: whether the keeper can signal the sender; if not, a pool whose holder hangs is not handed on unless a
            watchdog (see `keeper_svc`) of the sender's own namespace is there.
    """

    keeper: Name
    can_kill: bool


class PoolFound(Message, frozen=True, tag="pool_found"):
    """Answer to FindPool; 0 blocks for none."""

    num_blocks: Count


class PoolLeased(Message, frozen=True, tag="pool_leased"):
    """Answer to LeasePool and DepositPool: the sender holds the pool. Beside it, to LeasePool: the memory and its tag
    page.

    Attributes:
        pool: its name, which nobody else knows but its holders and their scheduler.
        lease: greater than that of any earlier holder.
    """

    pool: PoolName
    lease: Lease
    num_blocks: Positive
    num_bytes: Bytes


class PoolAbsent(Message, frozen=True, tag="pool_absent"):
    """Answer to LeasePool without `wait`: none of this kind is without a holder."""


class WeightsFound(Message, frozen=True, tag="weights_found"):
    """Answer to FindWeights. Beside it: the memory."""

    fingerprint: Name
    num_bytes: Bytes


class WeightsAbsent(Message, frozen=True, tag="weights_absent"):
    """Answer to FindWeights: no such weights are kept."""


class WeightsKept(Message, frozen=True, tag="weights_kept"):
    """Answer to DepositWeights."""


class Refused(Message, frozen=True, tag="refused"):
    """Answer to what cannot be done: `reason` names the value and the limit."""

    reason: Text


class Standbys(Message, frozen=True, tag="standbys"):
    """To the holder of a pool, unasked, when it changes: how many standbys wait that could continue it."""

    count: Count


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
        users: names of the executors that got or deposited them and still live.
        idle_s: since when there is no user; 0 while there is one.
    """

    fingerprint: str
    kind: WeightsKind
    num_bytes: Bytes
    users: tuple[str, ...]
    idle_s: float


class KeeperReport(Message, frozen=True, tag="keeper_report"):
    """Answer to KeeperQuery. Bytes are sizes of files: of a pool, memory is taken for the blocks that were used."""

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


FromKeeper = (
    Registered
    | PoolFound
    | PoolLeased
    | PoolAbsent
    | WeightsFound
    | WeightsAbsent
    | WeightsKept
    | Refused
    | Standbys
    | KeeperReport
    | Dropped
)
