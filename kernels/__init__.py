"""Kernels, and a plain-torch twin of each in `kernels.reference`. Nothing in here imports another part of Baton.

Hugging Face has a package of this name too, and transformers probes for it; `tests/kernels/test_coexistence.py`
holds that the two do not get in each other's way.
"""

import sys

# As in `common`, for `python -m kernels.cpu`.
if not (3, 11) <= sys.version_info < (3, 15) or sys.platform not in ("linux", "darwin"):
    found = "Python %d.%d on %s" % (sys.version_info[0], sys.version_info[1], sys.platform)  # noqa: UP031
    sys.stderr.write("Baton runs on Linux with Python 3.11, 3.12, 3.13 or 3.14, and not with %s.\n" % found)  # noqa: UP031
    sys.exit(2)
