"""What operators are told of that which is kept. Names are shortened: all of it goes into one packet."""

from common import messages as m
from keeper_svc.shelf import Pool, Weights

MAX_USERS = 4  # named, of the same weights


def kept_pool(pool: Pool, num_standbys: int, now: float) -> m.KeptPool:
    """A pool, as reported."""
    return m.KeptPool(
        pool=pool.shown,
        kind=pool.kind,
        lease=pool.lease,
        num_blocks=pool.num_blocks,
        num_bytes=pool.num_bytes,
        holder=pool.holder.name if pool.holder is not None else "",
        holder_pid=pool.holder.pid if pool.holder is not None else 0,
        since_s=now - pool.since,
        num_standbys=num_standbys,
    )


def kept_weights(weights: Weights, now: float) -> m.KeptWeights:
    """Weights, as reported."""
    return m.KeptWeights(
        fingerprint=weights.fingerprint,
        kind=weights.kind,
        num_bytes=weights.num_bytes,
        num_users=len(weights.users),
        users=tuple(user.name for user in weights.users[:MAX_USERS]),
        idle_s=0.0 if weights.users else now - weights.unused_since,
    )
