"""Exit codes of the services, by which a supervisor decides, and the one that an error at the start ends with.

`docs/operations.md` lists them. 2 and 78 say that only a change of configuration helps, and units of systemd do not
start a process again that ends so. So what may pass is never among them.
"""

import errno
import re
import socket

from common.errors import TryAgainError

EXIT_OK = 0
EXIT_USAGE = 2  # click's
EXIT_CRASHED = 70  # EX_SOFTWARE of sysexits.h
EXIT_TRY_AGAIN = 75  # EX_TEMPFAIL
EXIT_REJECTED = 78  # EX_CONFIG

# What is wrong with a name, an address or rights that were given. Any other error of the system may pass.
_SETTLED = {
    *(errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.EINVAL, errno.EAFNOSUPPORT, socket.EAI_NONAME, socket.EAI_FAMILY),
}
_PASSING_SQLITE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_NOMEM", "SQLITE_CANTOPEN")
_RUST_ERROR = re.compile(r"\(os error (\d+)\)")  # how libraries in Rust end their texts


def exit_code_of(error: BaseException, *passing: type[BaseException]) -> int:
    """What a process ends with that an error keeps from starting: 75 if a later start could work, else 2.

    The error is judged by itself and by its causes (`raise ... from`), so whoever wraps an OSError has to name it.

    Args:
        passing: errors that pass for this process, whatever their cause.
    """
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, (TryAgainError, *passing)) or _passes(each):
            return EXIT_TRY_AGAIN
        each = each.__cause__
    return EXIT_USAGE


def _passes(error: BaseException) -> bool:
    if getattr(error, "sqlite_errorname", "").startswith(_PASSING_SQLITE):
        return True
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (found := _RUST_ERROR.search(str(error))):
        number = int(found[1])
    return number is not None and number not in _SETTLED
