"""What executors and operators say to a machine's keeper, and its answers. Descriptors of files travel beside them.

A message is one packet of a unix socket: `[tag, field, ...]` in msgpack. The comments say which descriptors come along.
"""

from typing import Annotated, Literal

from msgspec import Meta

from common.messages.base import Count, Message, Name, Positive, Text
from common.messages.kept import (
    Bytes,
    DropKept,
    Dropped,
    KeeperQuery,
    KeeperReport,
    PoolKind,
    WeightsKind,
)

KEEPER_VERSION = 3
OLDEST_KEEPER_VERSION = 2  # of an executor that a keeper serves; it never sends ReleaseLease
MAX_DESCRIPTORS = 2  # beside one message
MAX_REQUEST_BYTES = 2**13  # to the keeper
MAX_ANSWER_BYTES = 2**17  # a report; every other answer is short

Lease = Annotated[int, Meta(ge=1, le=2**53)]
PoolName = Annotated[str, Meta(min_length=32, max_length=32)]
Instance = Annotated[str, Meta(min_length=32, max_length=32)]
SourceKey = Annotated[str, Meta(max_length=64)]
HolderState = Literal["serving", "seeking", "stuck"]


# --- to the keeper ---


class Register(Message, frozen=True, tag="register"):
    """The first message of an executor's connection. Beside it: a pidfd of the sender, made by itself.

    Attributes:
        version: `KEEPER_VERSION` of the sender.
        instance: random and secret, made once by each process. A process whose connection broke takes its place again.
        name: of the executor, for operators.
        pid: in its own namespace, for operators.
    """

    version: Count
    instance: Instance
    name: Name
    pid: Count


class Watch(Message, frozen=True, tag="watch"):
    """The first message of a watchdog's connection: I can kill the executor of this instance."""

    version: Count
    instance: Instance


class FindPool(Message, frozen=True, tag="find_pool"):
    """Which number of blocks has a pool of this kind that could be leased, now or once its holder is gone?

    Attributes:
        num_blocks: only pools of so many; 0 for any.
    """

    kind: PoolKind
    num_blocks: Count = 0


class AskRole(Message, frozen=True, tag="ask_role"):
    """Shall I serve, or wait for the pool of another executor of this kind? I can do both."""

    kind: PoolKind


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


class GivePoolUp(Message, frozen=True, tag="give_pool_up"):
    """Drop the pool that I hold: I write it no more, and nobody else could use it."""


class ReleaseLease(Message, frozen=True, tag="release_lease"):
    """My lease ends now, before this process does: I have unmapped the pool that I hold, and hand it on."""


class FindWeights(Message, frozen=True, tag="find_weights"):
    """Give me weights, by the model's fingerprint or by the files they would be read from; the other one is empty.

    Attributes:
        reads: with a source: the sender reads the files if no such weights are kept and no other executor reads them.
    """

    kind: WeightsKind
    fingerprint: Annotated[str, Meta(max_length=128)] = ""
    source: SourceKey = ""
    reads: bool = False


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


ToKeeper = (
    Register
    | Watch
    | FindPool
    | AskRole
    | LeasePool
    | DepositPool
    | GivePoolUp
    | ReleaseLease
    | FindWeights
    | DepositWeights
    | Alive
    | KeeperQuery
    | DropKept
)


# --- from the keeper ---


class Registered(Message, frozen=True, tag="registered"):
    """Answer to Register.

    Attributes:
        keeper: random, another one in each life of a keeper.
        can_kill: whether the keeper can signal the sender; if not, a pool whose holder hangs is not handed on unless a
            watchdog (`executor_svc/keeper/watchdog.py`) of the sender's own namespace is there.
    """

    keeper: Name
    can_kill: bool


class Watching(Message, frozen=True, tag="watching"):
    """Answer to Watch."""


class KillHolder(Message, frozen=True, tag="kill_holder"):
    """To a watchdog: kill the executor that you watch."""


class PoolFound(Message, frozen=True, tag="pool_found"):
    """Answer to FindPool; 0 blocks for none."""

    num_blocks: Count


class RoleGiven(Message, frozen=True, tag="role_given"):
    """Answer to AskRole. One executor waits for each kind that others on the machine serve."""

    waits: bool


class PoolLeased(Message, frozen=True, tag="pool_leased"):
    """Answer to LeasePool and DepositPool: the receiver holds the pool. Beside it, to LeasePool: the memory and its tag
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


class PoolGivenUp(Message, frozen=True, tag="pool_given_up"):
    """Answer to GivePoolUp, also where there was none."""


class LeaseReleased(Message, frozen=True, tag="lease_released"):
    """Answer to ReleaseLease, also where there was none."""


class WeightsFound(Message, frozen=True, tag="weights_found"):
    """Answer to FindWeights. Beside it: the memory."""

    fingerprint: Name
    num_bytes: Bytes


class WeightsAbsent(Message, frozen=True, tag="weights_absent"):
    """Answer to FindWeights: no such weights are kept.

    Attributes:
        is_read: another executor reads them from the same files at this moment. Ask again.
    """

    is_read: bool = False


class WeightsKept(Message, frozen=True, tag="weights_kept"):
    """Answer to DepositWeights."""


class Refused(Message, frozen=True, tag="refused"):
    """Answer to what cannot be done: `reason` names the value and the limit."""

    reason: Text


class Standbys(Message, frozen=True, tag="standbys"):
    """To the holder of a pool, unasked, when it changes: how many standbys wait that could continue it."""

    count: Count


FromKeeper = (
    Registered
    | Watching
    | KillHolder
    | PoolFound
    | RoleGiven
    | PoolLeased
    | PoolAbsent
    | PoolGivenUp
    | LeaseReleased
    | WeightsFound
    | WeightsAbsent
    | WeightsKept
    | Refused
    | Standbys
    | KeeperReport
    | Dropped
)
