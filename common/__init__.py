"""What crosses the wire, and what both services need. Nothing in here imports torch or a service."""

import sys

__version__ = "0.1.0"

# Here, because every part of Baton imports this package, and before it anything that would fail with a traceback.
if sys.version_info < (3, 11) or sys.platform not in ("linux", "darwin"):
    found = f"Python {sys.version_info[0]}.{sys.version_info[1]} on {sys.platform}"
    sys.stderr.write(f"Baton runs on Linux with Python 3.11, 3.12, 3.13 or 3.14, and not with {found}.\n")
    sys.exit(2)
