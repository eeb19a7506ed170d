"""Whose memory a captured graph reads and writes, by what torch's allocator says of it."""

from collections.abc import Sequence
from itertools import pairwise

import torch

from tests.rig.stand_in import Launch


def in_graph_pools() -> list[range]:
    """Memory that graphs have for themselves."""
    segments = torch.cuda.memory_snapshot()
    own = [segment for segment in segments if tuple(segment["segment_pool_id"]) != (0, 0)]
    return [range(segment["address"], segment["address"] + segment["total_size"]) for segment in own]


def not_held(launches: Sequence[Launch]) -> list[str]:
    """Names of captured launches that point to memory which no tensor holds, and which is no graph's own.

    Torch may hand it to anything, and a replay would write there.
    """
    held = in_graph_pools()
    for segment in torch.cuda.memory_snapshot():
        ends = [*(block["address"] for block in segment["blocks"]), segment["address"] + segment["total_size"]]
        for block, (start, end) in zip(segment["blocks"], pairwise(ends), strict=True):
            if block["state"] == "active_allocated":
                held.append(range(start, end))
    return [
        launch.name
        for launch in launches
        if launch.capture
        for _, value, points in launch.params
        if points and not any(value in each for each in held)
    ]
