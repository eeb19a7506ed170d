"""python -m tests.support.reciter FOLDER"""

import sys
from pathlib import Path

from tests.support.reciter.checkpoint import make_reciter

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.support.reciter FOLDER")
    make_reciter(Path(sys.argv[1]))
