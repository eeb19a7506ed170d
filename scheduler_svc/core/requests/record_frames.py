"""How records stand in a batch: each with a checksum, between two copies of a table of their lengths. Pure.

So damage to one record takes no other with it, and damage to one table takes none. There is nothing to search for: what
clients send stands in records, and no content of a record may be taken for the beginning of another. Checksums show
accidents: who can write the journal's file can write these, too.
"""

import struct
from array import array

import xxhash

_SIZE = struct.Struct("<I")  # bytes of a table: in front of the first, behind the second
_CHECKSUM_BYTES = 8  # xxh3_64; in front of a table's lengths (uint32), and of each record


def frame(records: list[bytes]) -> bytes:
    """A batch of encoded records."""
    if not records:
        return b""
    lengths = array("I", map(len, records)).tobytes()
    table = xxhash.xxh3_64_digest(lengths) + lengths
    size = _SIZE.pack(len(table))
    parts = [size, table]
    for record in records:
        parts += (xxhash.xxh3_64_digest(record), record)
    return b"".join([*parts, table, size])


def unframe(batch: bytes) -> tuple[list[bytes], int]:
    """The records of a batch that are whole, in order, and how many are not; 1 if that cannot be told."""
    if not batch:
        return [], 0
    lengths = _lengths(batch)
    if lengths is None:
        return [], 1
    whole: list[bytes] = []
    at = _SIZE.size + _CHECKSUM_BYTES + lengths.itemsize * len(lengths)
    for length in lengths:
        begin, at = at + _CHECKSUM_BYTES, at + _CHECKSUM_BYTES + length
        record = batch[begin:at]
        if len(record) == length and xxhash.xxh3_64_digest(record) == batch[begin - _CHECKSUM_BYTES : begin]:
            whole.append(record)
    return whole, len(lengths) - len(whole)


def _lengths(batch: bytes) -> "array[int] | None":
    """Of the records, by the first table that is whole; None if neither is."""
    if len(batch) < 2 * _SIZE.size:
        return None
    (first,), (second,) = _SIZE.unpack_from(batch), _SIZE.unpack_from(batch, len(batch) - _SIZE.size)
    end = len(batch) - _SIZE.size
    for table in (batch[_SIZE.size : _SIZE.size + first], batch[max(0, end - second) : end]):
        checksum, lengths = table[:_CHECKSUM_BYTES], table[_CHECKSUM_BYTES:]
        if len(lengths) % 4 == 0 and xxhash.xxh3_64_digest(lengths) == checksum:
            return array("I", lengths)
    return None
