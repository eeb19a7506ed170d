"""Writes a checkpoint of 0.6B's layers with the demo model's vocabulary and tokenizer, so that it can serve text.

python -m tests.gpu_session.text_checkpoint FOLDER
"""

import json
import sys
from pathlib import Path

from benchmarks.rig.text_checkpoint import write_text_checkpoint

if __name__ == "__main__":
    print(json.dumps({"folder": str(write_text_checkpoint(Path(sys.argv[1]), "0.6B"))}))
