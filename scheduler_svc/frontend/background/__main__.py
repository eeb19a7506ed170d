"""`python -m scheduler_svc.frontend.background`: the background worker. The scheduler starts it when it is wanted."""

import asyncio
import gc
import socket
import sys
from pathlib import Path

import click

from common.errors import BatonError
from common.log_options import log_options
from common.logging import get_logger, setup_logging
from common.model_files import resolve_model
from common.parent_death import killed_with
from scheduler_svc.frontend.background.app import create_worker_app
from scheduler_svc.frontend.background.worker import Worker
from scheduler_svc.frontend.http.server import ServerSettings, serve
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend_options import FrontendOptions, frontend_options
from scheduler_svc.store.store_thread import StoreThread
from scheduler_svc.store_options import StoreOptions, store_options

LOSS_TIMEOUT_S = 10.0  # of silence of the core, after which it ends
STALL_TIMEOUT_S = 60.0  # in which a frontend reads nothing of a stream

log = get_logger(__name__)


@click.command()
@click.version_option(package_name="baton", prog_name="baton-worker")
@click.option("--core-endpoint", required=True, help="ZeroMQ endpoint of the scheduler's core (ipc:// or tcp://).")
@click.option("--fd", type=click.IntRange(min=0), required=True, help="An inherited listening Unix socket.")
@click.option("--parent", type=int, help="Process that lent --fd: this one ends when it does.")
@click.option("--model", help="Folder or hub id whose tokenizer to use; without it, the embedded demo model.")
@frontend_options
@click.option("--api-keys", "api_keys_file", type=click.Path(dir_okay=False, path_type=Path),
              help="File of API keys (baton keys api).")  # fmt: skip
@store_options
@log_options
def main(
    *,
    core_endpoint: str,
    fd: int,
    parent: int | None,
    model: str | None,
    frontend: FrontendOptions,
    api_keys_file: Path | None,
    store: StoreOptions,
    log_level: str,
    log_format: str,
) -> None:
    """Run what no client waits for: responses in the background."""
    if parent is not None and (die_with_parent := killed_with(parent)) is not None:
        die_with_parent()
    setup_logging("worker", log_level, log_format)
    try:
        if store.folder is None:
            raise click.UsageError("the worker needs a --store")
        tokenizer = Tokenizer(resolve_model(model, weights=False))
        thread = StoreThread(store.folder, durable=store.durable)
        listener = socket.socket(fileno=fd)
    except (BatonError, OSError) as error:
        log.error("worker cannot start", error=str(error))
        sys.exit(2)

    async def run() -> bool:
        link = CoreLink(core_endpoint)
        worker = Worker(link, tokenizer, thread)
        app = create_worker_app(worker, frontend.keep_alive_s)
        gc.freeze()
        working = asyncio.create_task(worker.run())
        try:
            return await serve(app, link, listener, ServerSettings(LOSS_TIMEOUT_S, STALL_TIMEOUT_S, parent))
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            link.close()
            thread.close()

    sys.exit(0 if asyncio.run(run()) else 1)


if __name__ == "__main__":
    main()
