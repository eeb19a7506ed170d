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
    """What is wrong with a log, empty if nothing is: what it ends with may be lost.

    A log that ends early, as after a power cut, is not damaged. It may also have frames behind its end that a former
    round of the log has left; these have other salts.

    Raises:
        OSError: it cannot be read.
    """
    content = log.read_bytes() if log.exists() else b""
    if len(content) < _HEADER.size:
        return ""
    magic, _, page_bytes, _, *salts, sum0, sum1 = _HEADER.unpack_from(content)
    order = _MAGICS.get(magic)
    if order is None or _checksum(content[:24], order, (0, 0)) != (sum0, sum1):
        return "the header of its log is damaged"
    state, is_behind_end = (sum0, sum1), False
    for number, at in enumerate(_frames(content, page_bytes), 1):
        _, _, *frame_salts, sum0, sum1 = _FRAME.unpack_from(content, at)
        if not is_behind_end:
            data = at + _FRAME.size
            state = _checksum(content[at : at + 8] + content[data : data + page_bytes], order, state)
            is_behind_end = frame_salts != salts or state != (sum0, sum1)
        if is_behind_end and (frame_salts[0] == salts[0] or frame_salts[1] == salts[1]):
            return f"frame {number} of its log, or one before, is damaged"
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
