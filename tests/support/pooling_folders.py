"""Folders of models that embed and score, as far as a frontend reads them: the demo model's tokenizer, changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.model_files import DEMO_MODEL_DIR

END = 2045  # <|endoftext|>


def make_embedder(folder: Path) -> Path:
    """A model whose tokenizer ends each text with a token of its own, as Qwen3-Embedding's does."""

    def change(tokenizer: dict[str, Any]) -> None:
        text, end = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
        tokenizer["post_processor"] |= {
            "single": [text, end],
            "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [END], "tokens": ["<|endoftext|>"]}},
        }

    return _make(folder, change)


def make_reranker(folder: Path, template: str | None = "") -> Path:
    """A model whose tokenizer has "yes" and "no" as one token each.

    Args:
        template: of its chats; empty for the demo model's, None for none.
    """

    def change(tokenizer: dict[str, Any]) -> None:
        vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
        vocab["yes"] = vocab.pop("".join(merges[-1]))  # the last token, of which no other is made
        merges[-1] = ["y", "es"]

    made = _make(folder, change)
    source = (DEMO_MODEL_DIR / "chat_template.jinja").read_text() if template == "" else template
    if source is not None:
        (folder / "chat_template.jinja").write_text(source)
    return made


def _make(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    tokenizer = json.loads((DEMO_MODEL_DIR / "tokenizer.json").read_text())
    change(tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_text((DEMO_MODEL_DIR / name).read_text())
    return folder
