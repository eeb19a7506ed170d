"""One scheduler for each journal, in a folder that no other user can change: the lock beside the file."""

import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

from common.set_aside import beside
from scheduler_svc.server.journal_database import JournalError, require_trusted


def lock(path: Path) -> int:
    """Lock the file `<name>.lock` beside the journal.

    The kernel releases the lock when the process dies, however it dies; so the file is never removed and never stale.

    Returns:
        Its descriptor. Closing it unlocks.

    Raises:
        JournalError: another process has the lock, the folder is missing or cannot be written to, or another user could
            have put one of the files there.
    """
    require_trusted(path)
    try:
        fd = os.open(beside(path, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        reason = f"there is no folder {path.parent}; name another file by --journal"
        raise JournalError(f"journal {path} cannot be opened: {reason}") from error
    except OSError as error:
        reason = f"{path.parent}: {error.strerror}; name another file by --journal"
        raise JournalError(f"journal {path} cannot be opened: {reason}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(fd, 200).decode(errors="replace")
        os.close(fd)
        raise JournalError(f"journal {path} is in use by another scheduler ({holder})") from error
    except OSError as error:
        os.close(fd)
        raise JournalError(f"journal {path} cannot be locked: {error.strerror}") from error
    with suppress(OSError):  # on a full disk we go on: the holder's name is only for the message above
        os.ftruncate(fd, 0)
        os.write(fd, f"pid {os.getpid()} on {socket.gethostname()}".encode())
    return fd
