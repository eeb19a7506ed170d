"""From token ids to text, piece by piece, without ever showing half a character.

The tokens of a byte-level BPE are strings of bytes, and text is their concatenation read as UTF-8. So a table of
each token's bytes and Python's incremental UTF-8 decoder suffice: a token costs one lookup however long the text is.
Engines that use `tokenizer.decode` must decode a window of earlier tokens again.
"""

import codecs
from collections.abc import Iterable, Mapping
from typing import Any

from common.errors import CheckpointError

_INCREMENTAL_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Text of one sequence. The pieces together equal the decoding of all tokens at once.

    Args:
        token_bytes: bytes of each token id that shows, from `token_byte_table`.
    """

    def __init__(self, token_bytes: Mapping[int, bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = _INCREMENTAL_UTF8("replace")

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete; bytes of an unfinished character are kept for the next call."""
        lookup = self._token_bytes.get
        return self._decoder.decode(b"".join([lookup(token_id, b"") for token_id in token_ids]))

    def flush(self) -> str:
        """The rest at the end: U+FFFD for a character that was never finished, or nothing."""
        return self._decoder.decode(b"", final=True)


def token_byte_table(
    vocab: Mapping[str, int], special_ids: Iterable[int], decoder: Mapping[str, Any]
) -> dict[int, bytes]:
    """Bytes of each token that shows; special tokens and ids that no token has are absent and give no text.

    Args:
        vocab: token -> id, added tokens included.
        special_ids: tokens that are never shown.
        decoder: the `decoder` of tokenizer.json.

    Raises:
        CheckpointError: the decoder is not that of a byte-level BPE.
    """
    steps = decoder.get("decoders", [decoder])
    if [step.get("type") for step in steps] != ["ByteLevel"]:
        raise CheckpointError(f"the tokenizer decodes by {decoder}, Baton serves byte-level BPE models such as Qwen3")
    byte_of = _bytes_of_characters()
    hidden = set(special_ids)
    return {token_id: _token_to_bytes(token, byte_of) for token, token_id in vocab.items() if token_id not in hidden}


def _token_to_bytes(token: str, byte_of: Mapping[str, int]) -> bytes:
    try:
        return bytes([byte_of[character] for character in token])
    except KeyError:  # an added token that is plain text
        return token.encode()


def _bytes_of_characters() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: printable Latin-1 is itself, the others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
