"""Deletes what has expired, a little at a time."""

import asyncio
import time

from common.logging import get_logger
from scheduler_svc.store.errors import StoreError
from scheduler_svc.store.store_thread import SERVICE, StoreThread
from scheduler_svc.store.sweep import sweep

INTERVAL_S = 60.0
PAUSE_S = 1.0  # between calls while there is more

log = get_logger(__name__)


async def keep_swept(thread: StoreThread) -> None:
    """Until cancelled. Several processes may do it at once."""
    while True:
        is_more = False
        try:
            is_more = (await thread.run(SERVICE, sweep, time.time())).is_more
        except StoreError as error:
            log.error("the store cannot be swept", reason=str(error))
        await asyncio.sleep(PAUSE_S if is_more else INTERVAL_S)
