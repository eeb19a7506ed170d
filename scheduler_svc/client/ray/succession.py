"""Executors of an older revision get successors, one place after the other. Pure.

By standby, in a place:

    old serves ──▶ StartExecutor beside it ──▶ the new one waits as its standby ──▶ the old one leaves ──▶ done
                                              (or serves: it has other weights)

Otherwise the old one leaves first, and `plan.py` starts the new one in its place. The next place's turn comes when all
of them serve. A successor that cannot run as configured ends it: what is old goes on.
"""

from scheduler_svc.client.ray.facts import Action, Goal, Host, Leave, Life, Place, Seen, StartExecutor, free_number


def successions(seen: Seen, places: list[Place], idle: set[int], goal: Goal) -> list[Action]:
    """What to do next about executors of older revisions.

    Args:
        places: that stay, and have resources.
        idle: slots in which nothing has served for some time: no loss, so they are first.
    """
    hosts = {place.slot: seen.in_place(place.slot) for place in places}
    old = {slot: [host for host in there if host.name.revision < goal.revision] for slot, there in hosts.items()}
    if seen.ready is None or not any(old.values()) or any(_failed(there, goal) for there in hosts.values()):
        return []
    begun = [slot for slot, there in hosts.items() if old[slot] and (len(there) > len(old[slot]) or _leaves(there))]
    if begun:
        return _advance(seen, hosts[begun[0]], goal)
    for slot in hosts:
        if old[slot] and slot in idle:
            return [Leave(host.name) for host in old[slot] if host.is_live]
    if all(_serves(seen, there) for there in hosts.values()):
        return _advance(seen, next(hosts[slot] for slot in hosts if old[slot]), goal)
    return []


def _advance(seen: Seen, hosts: list[Host], goal: Goal) -> list[Action]:
    old = [host for host in hosts if host.name.revision < goal.revision and host.is_live]
    new = [host for host in hosts if host.name.revision == goal.revision and host.is_live]
    if not old:
        return []
    old_standbys = [host for host in old if not seen.is_ready(host)]
    if not goal.by_standby:
        return [Leave(host.name) for host in sorted(old, key=seen.is_ready)]
    if any(host.is_leaving and host.life is not Life.LEFT for host in hosts):
        return []
    if old_standbys and len(old_standbys) < len(old):  # one of these would be the successor
        return [Leave(host.name) for host in old_standbys]
    if not new:
        return [StartExecutor(old[0].name.slot, free_number(hosts), beside=old[0])]
    waits = any(seen.is_ready(host) or (host.report is not None and host.report.is_well) for host in new)
    return [Leave(host.name) for host in old] if waits else []


def _failed(hosts: list[Host], goal: Goal) -> bool:
    return any(host.life is Life.FAILED and host.name.revision == goal.revision for host in hosts)


def _leaves(hosts: list[Host]) -> bool:
    return any(host.is_leaving for host in hosts)


def _serves(seen: Seen, hosts: list[Host]) -> bool:
    return any(seen.is_ready(host) for host in hosts)
