"""A checkpoint of one of Qwen3's shapes with random weights, and the demo model's vocabulary: it can serve text.

python -m benchmarks.rig.text_checkpoint 0.6B FOLDER
"""

import sys
from dataclasses import replace
from pathlib import Path
from shutil import copy

from benchmarks.rig.checkpoints import SHAPES, write_checkpoint
from common.model_files import resolve_model
from executor_svc.model.families import read_config

FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def write_text_checkpoint(folder: Path, shape: str) -> Path:
    """Write it and return its folder, which is made if it is missing."""
    demo = resolve_model(None, weights=False)
    write_checkpoint(folder, replace(SHAPES[shape], vocab_size=read_config(demo).vocab_size))
    for name in FILES:
        copy(demo / name, folder)
    return folder


if __name__ == "__main__":
    print(write_text_checkpoint(Path(sys.argv[2]), sys.argv[1]))
