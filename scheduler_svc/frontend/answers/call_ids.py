"""Ids of an answer's calls."""

import hashlib


def call_id(answer_id: str, choice: int, number: int) -> str:
    """Of a choice's call with this number: the same wherever the call is written, as another frontend may go on with
    the stream."""
    name = f"{answer_id}/{choice}/{number}"
    return "call_" + hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
