"""Processes for which the modes of files count: root's read and write everything, and tests often run as root.

Root without these capabilities still owns its files, such as Python's, which another user of the machine may not reach.
"""

import os
import shutil

import pytest

_CAPABILITIES = ("dac_override", "dac_read_search", "linux_immutable")
_IS_ROOT = os.geteuid() == 0
needs_plain_rights = pytest.mark.skipif(_IS_ROOT and not shutil.which("setpriv"), reason="needs setpriv of util-linux")


def with_plain_rights(*command: object) -> list[str]:
    """A command whose process, with all that it starts, may do to files what their modes let it."""
    if not _IS_ROOT:
        return [*map(str, command)]
    bounds = ",".join(f"-{each}" for each in _CAPABILITIES)
    return ["setpriv", f"--bounding-set={bounds}", f"--inh-caps={bounds}", *map(str, command)]
