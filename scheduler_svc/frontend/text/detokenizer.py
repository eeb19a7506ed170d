"""From token ids to text, piece by piece, without ever showing half a character.

The tokens of a byte-level BPE are strings of bytes, and text is their concatenation read as UTF-8. SentencePiece's
pieces are text with a character of their own for the space, and characters that no piece has are written in tokens of
single bytes. So a table of each token's bytes and Python's incremental UTF-8 decoder suffice: a token costs one lookup
however long the text is. Engines that use `tokenizer.decode` must decode a window of earlier tokens again.

SentencePiece puts a space before each text, which is no part of it, and the library drops it from what it decodes. An
answer does not begin a text but goes on with its prompt's: its first token's space is one that the model wrote, and it
shows, as in vLLM. So the text is what a grammar has read, and what the bytes of log-probabilities add up to.
"""

import codecs
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from common.errors import CheckpointError
from common.tokenizer_file import BYTE_FALLBACK, FUSE, SPACE, STRIP, UNESCAPE

_INCREMENTAL_UTF8 = codecs.getincrementaldecoder("utf-8")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Decoding(NamedTuple):
    """How tokens become text.

    Attributes:
        has_pieces: they are SentencePiece's pieces, and not a byte-level BPE's.
        has_bytes: whether a piece of the form `<0x0A>` is a byte.
        drops_space: whether the first space of a text is the tokenizer's own.
    """

    has_pieces: bool = False
    has_bytes: bool = False
    drops_space: bool = False


class Detokenizer:
    """Text of one sequence. The pieces together equal the decoding of all tokens at once.

    Args:
        token_bytes: bytes of each token id that shows, from `token_byte_table`.
        drops_space: whether the first character is left out if it is a space.
    """

    def __init__(self, token_bytes: Mapping[int, bytes], *, drops_space: bool = False) -> None:
        self._token_bytes = token_bytes
        self._drops_space = drops_space
        self._decoder = _INCREMENTAL_UTF8("replace")

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete; bytes of an unfinished character are kept for the next call."""
        lookup = self._token_bytes.get
        data = b"".join([lookup(token_id, b"") for token_id in token_ids])
        if self._drops_space and data:
            self._drops_space, data = False, data.removeprefix(b" ")
        return self._decoder.decode(data)

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
        CheckpointError: the decoder is neither that of a byte-level BPE nor that of SentencePiece's pieces.
    """
    decoding, hidden = decoding_of(decoder), set(special_ids)
    shown = {token: token_id for token, token_id in vocab.items() if token_id not in hidden}
    if decoding.has_pieces:
        return {token_id: _piece_to_bytes(token, decoding) for token, token_id in shown.items()}
    byte_of = _bytes_of_characters()
    return {token_id: _token_to_bytes(token, byte_of) for token, token_id in shown.items()}


def decoding_of(decoder: Mapping[str, Any]) -> Decoding:
    """Read the `decoder` of a tokenizer.json. Raises as `token_byte_table` does."""
    steps = decoder.get("decoders", [decoder])
    if [step.get("type") for step in steps] == ["ByteLevel"]:
        return Decoding()
    has_bytes = BYTE_FALLBACK in steps
    match [step for step in steps if step != BYTE_FALLBACK]:
        case [first, second] if [first, second] == [UNESCAPE, FUSE]:
            return Decoding(has_pieces=True, has_bytes=has_bytes)
        case [first, second, third] if [first, second, third] == [UNESCAPE, FUSE, STRIP]:
            return Decoding(has_pieces=True, has_bytes=has_bytes, drops_space=True)
        case [{"type": "Metaspace", "replacement": char, **options}] if char == SPACE:
            # Alone, the library's Metaspace leaves `<0x0A>` as it is, and drops all spaces of the first token.
            return Decoding(has_pieces=True, has_bytes=True, drops_space=options.get("prepend_scheme") != "never")
    raise CheckpointError(
        f"the tokenizer decodes by {decoder!s:.300}, and served are byte-level BPE, such as Qwen's and Llama 3's, "
        "and SentencePiece's pieces, such as Llama 2's and Mistral's"
    )


def _piece_to_bytes(piece: str, decoding: Decoding) -> bytes:
    if decoding.has_bytes and (byte := _BYTE_TOKEN.fullmatch(piece)):
        return bytes.fromhex(byte[1])
    return piece.replace(SPACE, " ").encode()


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
