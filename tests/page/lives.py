"""A request whose executor was lost: what the service tells of its life."""

from tests.page.stage import life

# As in docs/page.md.
FIRST = {"executor": "executor-0", "epoch": 7}
SECOND = {"executor": "executor-1", "epoch": 8}
MOVED = (
    {"at": 100.0, "what": "queued", "tokens": 120},
    {"at": 101.0, "what": "admitted", **FIRST, "tokens": 120, "cached": 64},
    {"at": 101.0, "what": "prefill", **FIRST, "tokens": 56},
    {"at": 102.0, "what": "first_token", **FIRST},
    {"at": 105.0, "what": "lost", **FIRST, "cause": "disconnected"},
    {"at": 105.5, "what": "admitted", **SECOND, "tokens": 160, "cached": 159},
    {"at": 105.5, "what": "prefill", **SECOND, "tokens": 1},
    {"at": 106.0, "what": "resumed", **SECOND},
    {"at": 110.0, "what": "ended", "tokens": 87, "cause": "stop"},
)


def told(*marks, now=110.0):
    """A life whose clock is that of its marks."""
    whole = life("x", *marks) | {"now": now}
    whole["sequences"][0]["output"] = 87
    return whole
