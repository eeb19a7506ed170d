"""Whether the log of an SQLite database is whole. SQLite takes damage in it for the log's end, and says nothing.

The format is described at https://www.sqlite.org/fileformat2.html#walformat.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

_HEADER = struct.Struct(">8I")  # magic, version, page size, checkpoint, two salts, two checksums
_FRAME = struct.Struct(">6I")  # page, pages after a commit, two salts, two checksums
_MAGICS = {0x377F0682: "<", 0x377F0683: ">"}  # with the byte order of checksums


def damage_of(log: Path) -> str:
    """What is wrong with a log, empty if nothing is: what stands behind the damage is lost.

    A log has an end, where frames no longer follow from those before them. Behind it there may be frames of a former
    round of the log, which have other salts, and frames of a transaction that a kill cut short, which lack the frame
    that commits it. So a whole frame behind the end that commits tells damage. If the last frame of all is damaged, the
    log looks like one that a kill or a power cut ended there.

    Raises:
        OSError: it cannot be read.
    """
    try:
        content = log.read_bytes()
    except FileNotFoundError:
        content = b""
    if len(content) < _HEADER.size:
        return ""
    magic, _, page_bytes, _, *salts, sum0, sum1 = _HEADER.unpack_from(content)
    order = _MAGICS.get(magic)
    if order is None or _checksum(content[:24], order, (0, 0)) != (sum0, sum1):
        return "the header of its log is damaged"
    states, end = {(sum0, sum1)}, 0
    for number, at in enumerate(_frames(content, page_bytes), 1):
        _, pages_after_commit, *frame_salts, sum0, sum1 = _FRAME.unpack_from(content, at)
        data = at + _FRAME.size
        hashed = content[at : at + 8] + content[data : data + page_bytes]
        computed = {_checksum(hashed, order, state) for state in states}
        follows = frame_salts == salts and (sum0, sum1) in computed
        if end and follows and pages_after_commit:
            return f"frame {end} of its log is damaged"
        states = {(sum0, sum1)}
        if not end and not follows:
            end = number
            states |= computed  # it may be the stored one that is damaged
    return ""


def _frames(content: bytes, page_bytes: int) -> Iterator[int]:
    """Where each whole frame begins."""
    length = _FRAME.size + page_bytes
    yield from range(_HEADER.size, len(content) - length + 1, length)


def _checksum(data: bytes, order: str, state: tuple[int, int]) -> tuple[int, int]:
    """SQLite's checksum of these bytes, a multiple of eight, after what `state` is the checksum of."""
    sum0, sum1 = state
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        sum0 = (sum0 + even + sum1) & 0xFFFFFFFF
        sum1 = (sum1 + odd + sum0) & 0xFFFFFFFF
    return sum0, sum1
