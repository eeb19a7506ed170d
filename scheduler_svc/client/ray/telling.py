"""Actions of a fleet's manager in words. Pure."""

from scheduler_svc.client.ray.facts import (
    Action,
    Leave,
    MakePlace,
    Remove,
    RemovePlace,
    Say,
    Seen,
    StartExecutor,
    StartKeeper,
    StartScheduler,
)


def told(action: Action, seen: Seen, revision: int) -> str:
    """A line about an action for the operator."""
    match action:
        case Say(line):
            words = line
        case StartScheduler(node):
            words = f"start the scheduler on {_address(seen, node)}"
        case StartKeeper(node):
            words = f"start a keeper on {_address(seen, node)}"
        case MakePlace(slot):
            words = f"ask for the resources of executor {slot}"
        case RemovePlace(slot):
            words = f"give back the resources of executor {slot}"
        case StartExecutor(slot, number, beside):
            words = f"start executor-{slot}-{number} of revision {revision}"
            words += "" if beside is None else f" beside {beside.name}"
        case Leave(name):
            words = f"let {name} leave"
        case Remove(name):
            words = f"remove {name}"
    return words


def _address(seen: Seen, node: str) -> str:
    return seen.nodes[node].address if node in seen.nodes else "any node"
