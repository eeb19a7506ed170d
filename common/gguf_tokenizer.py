"""Makes a tokenizer.json and a tokenizer_config.json of what a GGUF file says of its tokenizer.

A GGUF file has the tokens, their kinds, and merges or scores, but the way in which a text is normalized and split into
words only as a name, `tokenizer.ggml.pre`. llama.cpp has the rule of each name in its source; here are those of the
families that are served, as the models' own tokenizer.json have them. Another name is refused: ids by another rule
would look like those of a model that answers badly.

Errors name the key; `gguf_files` puts the file's name before them.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from math import isnan
from typing import Any, NamedTuple

from common.errors import CheckpointError
from common.tokenizer_file import BYTE_FALLBACK, FUSE, MAX_VOCAB_SIZE, SPACE, STRIP, UNESCAPE

MAX_PIECE_CHARS = 2**7  # of one of SentencePiece's pieces, which is cut at each; Llama 2's have up to 16
MAX_CUTS = 2**20  # characters of all pieces; Llama 2's have 162,021
Json = dict[str, Any]


class _Kind(IntEnum):
    """Kinds of tokens in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_ADDED = (_Kind.UNKNOWN, _Kind.CONTROL, _Kind.USER_DEFINED)  # found in a text before it is split


class _Rule(NamedTuple):
    """How the texts of a byte-level BPE are made into words.

    Attributes:
        adds_bos: unless the file says otherwise.
        ignores_merges: whether a word that is a token is that token, though no merges lead to it.
    """

    pre_tokenizer: Json
    normalizer: Json | None = None
    adds_bos: bool = False
    ignores_merges: bool = False


def _byte_level(*, splits: bool) -> Json:
    """The step that makes characters of bytes, and splits words as GPT-2 did if it is to."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": splits}


def _split_by(letters: str, digits: str) -> Json:
    """The split of GPT-4's kind: a contraction; a word with one other character before it; digits; signs; spaces.

    Args:
        letters: what words consist of, as a regular expression has it in brackets.
        digits: a piece of a number.
    """
    contraction = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    word = rf"[^\r\n\p{{L}}\p{{N}}]?[{letters}]+"
    signs = rf" ?[^\s{letters}\p{{N}}]+[\r\n]*"
    spaces = (r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+")
    pattern = "|".join([contraction, word, digits, signs, *spaces])
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(splits=False)]}


_NFC = {"type": "NFC"}  # of Qwen's own tokenizers; llama.cpp does not compose characters
_STARCODER = _Rule(
    {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level(splits=True)],
    }
)
_RULES = {
    "llama-bpe": _Rule(_split_by(r"\p{L}", r"\p{N}{1,3}"), adds_bos=True, ignores_merges=True),
    "qwen2": _Rule(_split_by(r"\p{L}", r"\p{N}"), _NFC),
    "qwen35": _Rule(_split_by(r"\p{L}\p{M}", r"\p{N}"), _NFC),
    "smollm": _STARCODER,
    "starcoder": _STARCODER,
    "refact": _STARCODER,
}


def tokenizer_json(metadata: Mapping[str, Any]) -> Json:
    """Make the content of a tokenizer.json, as the `tokenizers` library reads it.

    Raises:
        CheckpointError: the tokenizer is of a kind that is not supported, or contradicts itself.
    """
    tokens = _Tokens.of(metadata)
    match metadata.get("tokenizer.ggml.model"):
        case "gpt2":
            parts = _byte_level_bpe(metadata, tokens)
        case "llama":
            parts = _sentence_piece(metadata, tokens)
        case other:
            raise CheckpointError(f"tokenizer.ggml.model is {other!r:.80}, and supported are 'gpt2' and 'llama'")
    added = [_added_token(i, text, kind) for i, text, kind in tokens.known() if kind in _ADDED]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": _post_processor(metadata, tokens),
        **parts,
    }


def tokenizer_config(metadata: Mapping[str, Any]) -> Json:
    """Make the content of a tokenizer_config.json: special tokens, and the chat template if there is one.

    Raises:
        CheckpointError: a special token's id is none of the tokens'.
    """
    tokens = _Tokens.of(metadata)
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: _token_id(metadata, key, tokens) for name, key in names.items()}
    found: Json = {name: tokens.texts[i] for name, i in ids.items() if i is not None}
    found |= {"add_bos_token": _adds(metadata, "bos"), "add_eos_token": _adds(metadata, "eos")}
    if (template := metadata.get("tokenizer.chat_template")) is not None:
        found["chat_template"] = template
    return found


class _Tokens(NamedTuple):
    """The tokens by their ids."""

    texts: Sequence[str]
    kinds: Sequence[int]

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> "_Tokens":
        """Read them. Raises CheckpointError if they are missing, too many, or not of known kinds."""
        texts = _list(metadata, "tokens", str)
        kinds = _list(metadata, "token_type", int)
        if not 1 <= len(texts) <= MAX_VOCAB_SIZE:
            raise CheckpointError(f"tokenizer.ggml.tokens has {len(texts)} tokens, allowed are 1 to {MAX_VOCAB_SIZE}")
        if len(kinds) != len(texts):
            raise CheckpointError(f"tokenizer.ggml.token_type has {len(kinds)} values for {len(texts)} tokens")
        if unknown := set(kinds) - set(_Kind):
            raise CheckpointError(f"tokenizer.ggml.token_type has {min(unknown)}, allowed are 1 to {max(_Kind)}")
        return cls(texts, kinds)

    def known(self) -> Iterator[tuple[int, str, int]]:
        """Yield ids, texts and kinds, without tokens that stand for nothing: a converter fills the vocabulary up with
        `[PAD151646]` and the like, as tokens of whichever kind, where the model has more rows than tokens."""
        for i, (text, kind) in enumerate(zip(self.texts, self.kinds, strict=True)):
            if text and kind != _Kind.UNUSED and not (text[0] == "[" and text == f"[PAD{i}]"):
                yield i, text, kind

    def vocab(self) -> dict[str, int]:
        """Return all that are known, by their texts. Raises CheckpointError if two have one text."""
        vocab: dict[str, int] = {}
        for i, text, _ in self.known():
            if (first := vocab.setdefault(text, i)) != i:
                raise CheckpointError(f"tokenizer.ggml.tokens has {text!r:.80} twice, as {first} and as {i}")
        return vocab


def _list(metadata: Mapping[str, Any], name: str, *kinds: type) -> list[Any]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if values is None:
        raise CheckpointError(f"tokenizer.ggml.{name} is missing")
    if not isinstance(values, list) or not set(map(type, values)) <= set(kinds):
        raise CheckpointError(f"tokenizer.ggml.{name} is no list of {kinds[0].__name__}")
    return values


def _flag(metadata: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if type(value) is not bool:
        raise CheckpointError(f"tokenizer.ggml.{name} is {value!r:.80}, and not true or false")
    return value


def _token_id(metadata: Mapping[str, Any], name: str, tokens: _Tokens) -> int | None:
    """The id of a special token; None if there is none. Those of SentencePiece's models have llama.cpp's defaults."""
    defaults = {"bos": 1, "eos": 2, "unknown": 0} if metadata.get("tokenizer.ggml.model") == "llama" else {}
    found = metadata.get(f"tokenizer.ggml.{name}_token_id", defaults.get(name))
    if found is None:
        return None
    if type(found) is not int or not 0 <= found < len(tokens.texts):
        last = len(tokens.texts) - 1
        raise CheckpointError(f"tokenizer.ggml.{name}_token_id is {found!r:.80}, allowed are 0 to {last}")
    return found


def _adds(metadata: Mapping[str, Any], name: str) -> bool:
    """Tell whether texts begin with BOS, or end with EOS: the file says so, else the rule of its tokenizer does.

    Args:
        name: `bos` or `eos`.
    """
    adds_bos = metadata.get("tokenizer.ggml.model") == "llama" or _rule(metadata).adds_bos
    return _flag(metadata, f"add_{name}_token", default=adds_bos and name == "bos")


def _rule(metadata: Mapping[str, Any]) -> _Rule:
    """The rule of a byte-level BPE. Raises CheckpointError if the file names none, or one that is not supported."""
    pre = metadata.get("tokenizer.ggml.pre")
    if isinstance(pre, str) and pre in _RULES:
        return _RULES[pre]
    supported = f"supported are {', '.join(_RULES)}"
    if pre in (None, "default"):
        raise CheckpointError(
            f"tokenizer.ggml.pre is {'missing' if pre is None else repr(pre)}, so it is not known how texts are split "
            f"into words: convert the model anew, with a llama.cpp that knows it ({supported})"
        )
    raise CheckpointError(f"tokenizer.ggml.pre is {pre!r:.80}, and {supported}")


def _added_token(token_id: int, text: str, kind: int) -> Json:
    return {
        "id": token_id,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": kind != _Kind.USER_DEFINED,
    }


def _post_processor(metadata: Mapping[str, Any], tokens: _Tokens) -> Json | None:
    """Put BOS before a text and EOS after it, where they are to be; None if neither is."""
    added: dict[str, dict[str, int]] = {}  # ids by texts
    for name in ("bos", "eos"):
        token_id = _token_id(metadata, name, tokens) if _adds(metadata, name) else None
        if token_id is None and _adds(metadata, name):
            raise CheckpointError(f"tokenizer.ggml.{name}_token_id is missing, and is to be added to each text")
        added[name] = {} if token_id is None else {tokens.texts[token_id]: token_id}

    def around(sequence: str, number: int) -> list[Json]:
        before, after = (
            [{"SpecialToken": {"id": text, "type_id": number}} for text in added[name]] for name in ("bos", "eos")
        )
        return [*before, {"Sequence": {"id": sequence, "type_id": number}}, *after]

    special = added["bos"] | added["eos"]
    if not special:
        return None
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {text: {"id": text, "ids": [i], "tokens": [text]} for text, i in special.items()},
    }


def _bpe(vocab: dict[str, int], merges: list[Any], **said: Any) -> Json:
    """A BPE model, with the settings that are said and those of nothing special."""
    settings = {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {"type": "BPE", **settings, **said, "vocab": vocab, "merges": merges}


def _byte_level_bpe(metadata: Mapping[str, Any], tokens: _Tokens) -> Json:
    rule = _rule(metadata)
    merges = _list(metadata, "merges", str)
    return {
        "normalizer": rule.normalizer,
        "pre_tokenizer": rule.pre_tokenizer,
        "decoder": _byte_level(splits=True),
        "model": _bpe(tokens.vocab(), merges, ignore_merges=rule.ignores_merges),
    }


def _sentence_piece(metadata: Mapping[str, Any], tokens: _Tokens) -> Json:
    """The whole text is one word, and so is the space before it, which is no part of the text but for the tokens."""
    if (pre := metadata.get("tokenizer.ggml.pre", "default")) != "default":
        raise CheckpointError(f"tokenizer.ggml.pre is {pre!r:.80}, and a model of the kind 'llama' has 'default'")
    has_prefix = _flag(metadata, "add_space_prefix", default=True)
    prepend = [{"type": "Prepend", "prepend": SPACE}] if has_prefix else []
    strip = [STRIP] if has_prefix else []
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    unknown = _token_id(metadata, "unknown", tokens)
    merges = _merges_by_score(tokens, _list(metadata, "scores", float, int))
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, escape]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [UNESCAPE, BYTE_FALLBACK, FUSE, *strip]},
        "model": _bpe(
            tokens.vocab(),
            merges,
            unk_token=None if unknown is None else tokens.texts[unknown],
            fuse_unk=True,
            byte_fallback=True,
        ),
    }


def _merges_by_score(tokens: _Tokens, scores: Sequence[float]) -> list[tuple[str, str]]:
    """List the pairs of pieces that make a piece, the best first.

    SentencePiece merges the two neighbours that make the piece with the best score, wherever a piece comes from. With
    ranks for its pairs in the order of these scores, BPE does the same.
    """
    if len(scores) != len(tokens.texts):
        raise CheckpointError(f"tokenizer.ggml.scores has {len(scores)} values for {len(tokens.texts)} tokens")
    pieces = {text: scores[i] for i, text, kind in tokens.known() if kind == _Kind.NORMAL}
    longest, total = max(map(len, pieces), default=0), sum(map(len, pieces))
    if longest > MAX_PIECE_CHARS or total > MAX_CUTS:
        raise CheckpointError(
            f"tokenizer.ggml.tokens has a piece of {longest} characters, and {total} in all; the limits are "
            f"{MAX_PIECE_CHARS} and {MAX_CUTS}"
        )
    if any(map(isnan, pieces.values())):
        raise CheckpointError("tokenizer.ggml.scores has a NaN")
    same = {piece: piece for piece in pieces}  # so that merges share their strings
    cuts = (
        (same.get(piece[:cut]), same.get(piece[cut:]))
        for piece in sorted(pieces, key=pieces.__getitem__, reverse=True)
        for cut in range(1, len(piece))
    )
    return [(left, right) for left, right in cuts if left is not None and right is not None]
