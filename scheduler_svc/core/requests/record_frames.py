"""How records stand in a batch: each with a checksum, and marks between, so that damage to one takes no other. Pure.

A record's bytes are escaped, so that none of them can be taken for a mark (the framing of SLIP, RFC 1055). A length in
front would be shorter, but damage to one length would move all that follows; and what clients send stands in records,
so nothing in a record may look like the beginning of another.
"""

import xxhash

_MARK, _MARK_ESCAPED = b"\xc0", b"\xdb\xdc"
_ESCAPE, _ESCAPE_ESCAPED = b"\xdb", b"\xdb\xdd"
_BETWEEN = _MARK + _MARK  # if one of both is damaged, the other still parts two records


def frame(records: list[bytes]) -> bytes:
    """A batch of encoded records."""
    sealed = [record + xxhash.xxh3_64_digest(record) for record in records]
    escaped = [each.replace(_ESCAPE, _ESCAPE_ESCAPED).replace(_MARK, _MARK_ESCAPED) for each in sealed]
    return _BETWEEN.join(escaped)


def unframe(batch: bytes) -> tuple[list[bytes], int]:
    """The records of a batch that are whole, in order, and how many pieces are not."""
    whole: list[bytes] = []
    num_damaged = 0
    for piece in batch.split(_MARK):
        if not piece:
            continue
        sealed = piece.replace(_MARK_ESCAPED, _MARK).replace(_ESCAPE_ESCAPED, _ESCAPE)
        record, checksum = sealed[:-8], sealed[-8:]
        if len(sealed) > len(checksum) and xxhash.xxh3_64_digest(record) == checksum:
            whole.append(record)
        else:
            num_damaged += 1
    return whole, num_damaged
