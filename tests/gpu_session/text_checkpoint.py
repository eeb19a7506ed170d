"""Writes a checkpoint of 0.6B's layers with the demo model's vocabulary and tokenizer, so that it can serve text.

python -m tests.gpu_session.text_checkpoint FOLDER
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.rig.checkpoints import SHAPES, write_checkpoint
from tests.support.checkpoints import copy_tokenizer, demo_vocab_size

if __name__ == "__main__":
    folder = write_checkpoint(Path(sys.argv[1]), replace(SHAPES["0.6B"], vocab_size=demo_vocab_size()))
    copy_tokenizer(folder)
    print(json.dumps({"folder": str(folder)}))
