"""What a keeper keeps for this executor. The link holds the files open, to bring them to the next keeper."""

from dataclasses import dataclass, field

from common import messages as m


@dataclass(frozen=True)
class HeldPool:
    """A pool that this process may write.

    Attributes:
        pool: its name, a secret between its holders and their scheduler.
        lease: greater than that of any earlier holder.
        memory_fd, tag_fd: its files (see `PoolTag`). They are the link's: map them, and leave them open.
    """

    kind: m.PoolKind
    pool: str = field(repr=False)
    lease: int
    num_blocks: int
    num_bytes: int
    memory_fd: int
    tag_fd: int

    def deposit(self) -> m.DepositPool:
        """What to tell a keeper that does not know the pool."""
        return m.DepositPool(
            kind=self.kind, num_blocks=self.num_blocks, num_bytes=self.num_bytes, pool=self.pool, lease=self.lease
        )


@dataclass(frozen=True)
class HeldWeights:
    """Weights that a keeper has for every executor of their kind.

    Attributes:
        source: hash over the files that they were read from; empty if this process did not read any.
        memory_fd: the file. It is the link's: map it, and leave it open.
    """

    kind: m.WeightsKind
    fingerprint: str
    source: str
    num_bytes: int
    memory_fd: int

    def deposit(self) -> m.DepositWeights:
        """What to tell a keeper that does not know them."""
        return m.DepositWeights(
            kind=self.kind, fingerprint=self.fingerprint, num_bytes=self.num_bytes, source=self.source
        )
