"""Room for a new pool on a GPU."""

from common import messages as m
from common.logging import get_logger
from executor_svc.keeper.link import KeeperLink

log = get_logger("executor")


def make_room(link: KeeperLink, device: str) -> int:
    """Give back what pools without a holder have of a GPU's memory. Returns how many bytes these are.

    For the machine's memory the keeper does so by itself: it has a limit there, and memory that nobody touches costs
    nothing. On a GPU a pool takes all of its memory as long as it is kept, though another model has no use for it.
    """
    num_bytes = 0 if device == "cpu" else drop_left_pools(link, device)
    if num_bytes:
        log.info("pools without a holder were dropped", device=device, gib=round(num_bytes / 2**30, 3))
    return num_bytes


def drop_left_pools(link: KeeperLink, device: str) -> int:
    """Have the pools on a device dropped that no executor holds. Returns how many bytes they had.

    Raises:
        KeeperError: the keeper has gone.
    """
    report, _ = link.ask(m.KeeperQuery(), m.KeeperReport)
    assert isinstance(report, m.KeeperReport)
    num_bytes = 0
    for left in [pool for pool in report.pools if pool.kind.device == device and not pool.holder]:
        dropped, _ = link.ask(m.DropKept(name=left.pool), m.Dropped)
        assert isinstance(dropped, m.Dropped)
        num_bytes += dropped.num_bytes
    return num_bytes
