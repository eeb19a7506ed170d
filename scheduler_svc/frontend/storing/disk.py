"""Room on the store's volume, on which the journal may be as well."""

import shutil
from pathlib import Path

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.storing.errors import store_gone

MIN_FREE_BYTES = 256 * 2**20  # what was accepted must find room when it ends, and so must the journal


def check_disk(folder: Path) -> None:
    """Raise ApiError (507) where nothing new is to be stored: the volume is nearly full, or the folder is gone."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise store_gone() from error
    if free < MIN_FREE_BYTES:
        message = f"The store's volume has {free} bytes free, and keeps {MIN_FREE_BYTES} for what was accepted."
        raise ApiError(507, message, code="insufficient_storage")
