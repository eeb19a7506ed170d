"""What crosses the wire, and what both services need. Nothing in here imports torch or a service."""

import sys

__version__ = "0.1.0"
IS_BATON = True  # as other projects' packages of this name are not

# Here, because every part of Baton but `kernels` imports this package, and before it anything that would fail with a
# traceback. Any Python can read it, Python 2 too.
if not (3, 11) <= sys.version_info < (3, 15) or sys.platform not in ("linux", "darwin"):
    found = "Python %d.%d on %s" % (sys.version_info[0], sys.version_info[1], sys.platform)  # noqa: UP031
    sys.stderr.write("Baton runs on Linux with Python 3.11, 3.12, 3.13 or 3.14, and not with %s.\n" % found)  # noqa: UP031
    sys.exit(2)
