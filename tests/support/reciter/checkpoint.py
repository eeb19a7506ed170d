"""The reciter's folder, as a Hugging Face model."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from tests.support.reciter.answers import ANSWERS, SHOWN
from tests.support.reciter.states import all_states
from tests.support.reciter.tokenizer import make_tokenizer
from tests.support.reciter.weights import Special, write_weights

FILLER = " la"
HERE = Path(__file__).parent
TEMPLATE = HERE / "template.jinja"
CACHE = HERE.parents[2] / "build"


def make_reciter(folder: Path) -> Path:
    """Write the checkpoint into a folder, made if need be, and return that. Takes a few seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(folder)
    shutil.copy(TEMPLATE, folder / "chat_template.jinja")

    def token_of(text: str) -> int:
        (token,) = tokenizer.encode(text).ids
        return int(token)

    words = tuple(token_of(answer.word) for answer in ANSWERS)
    others = (SHOWN, "</tool_response>", "<|im_start|>", "</tool_call>")
    special = Special(words, *map(token_of, others))
    write_weights(folder, all_states(tokenizer), special, token_of(FILLER))
    return folder


def reciter_folder() -> Path:
    """The checkpoint in `build`, made by the first test that asks for this version of it."""
    digest = hashlib.sha256()
    for path in sorted(HERE.iterdir()):
        if path.is_file():
            digest.update(path.read_bytes())
    folder = CACHE / f"reciter-{digest.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix="reciter.", dir=CACHE))
    try:
        make_reciter(part)
        os.rename(part, folder)
    except OSError:  # another process was first
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder
