"""`python -m scheduler_svc.frontend.background`: the background worker. The scheduler starts it when it is wanted."""

import asyncio
import gc
import socket
import sys
from dataclasses import replace
from pathlib import Path

import click

from common.errors import BatonError
from common.log_options import CannotStart, ServiceCommand, log_options
from common.logging import get_logger, setup_logging
from common.malloc import give_large_blocks_back
from common.model_files import model_name, resolve_model
from common.parent_death import killed_with
from common.release import BUILD
from scheduler_svc.api_key_options import plain_keys
from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.background.app import create_worker_app
from scheduler_svc.frontend.background.batch_tools import BatchTools
from scheduler_svc.frontend.background.batches import Batches
from scheduler_svc.frontend.background.line_gate import LineGate
from scheduler_svc.frontend.background.patient_store import PatientStore
from scheduler_svc.frontend.background.worker import Worker
from scheduler_svc.frontend.http.server import ServerSettings, allowed_connections, serve
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.batches.line_endpoints import line_endpoints
from scheduler_svc.frontend.requests.chat_style import style_of
from scheduler_svc.frontend.requests.pooling_model import PoolingModel, read_pooling_models
from scheduler_svc.frontend.requests.reader import RequestReader
from scheduler_svc.frontend.text.long_work import LongWork
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend.tracing.start import start_tracing
from scheduler_svc.frontend_options import FrontendOptions, frontend_options
from scheduler_svc.store.store_thread import StoreThread
from scheduler_svc.store_options import StoreOptions, store_options

LOSS_TIMEOUT_S = 10.0  # of silence of the core, after which it ends
STOP_GRACE_S = 4.0  # for frontends to end their streams
STALL_TIMEOUT_S = 60.0  # in which a frontend reads nothing of a stream

log = get_logger(__name__)


@click.command(cls=ServiceCommand, service="worker")
@click.version_option(BUILD, prog_name="baton-worker")
@click.option("--core-endpoint", required=True, help="ZeroMQ endpoint of the scheduler's core (ipc:// or tcp://).")
@click.option("--fd", type=click.IntRange(min=0), required=True, help="An inherited listening Unix socket.")
@click.option("--parent", type=int, help="Process that lent --fd: this one ends when it does.")
@click.option(
    "--model", help="Folder, GGUF file or hub id whose tokenizer to use; without it, the embedded demo model."
)
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
    """Run what no client waits for: responses in the background, and batches. API keys as those of a frontend."""
    if parent is not None and (die_with_parent := killed_with(parent)) is not None:
        die_with_parent()
    setup_logging("worker", log_level, log_format)
    give_large_blocks_back()
    frontend = replace(
        frontend,
        served_model_name=frontend.served_model_name or (model_name(model),),
        max_connections=allowed_connections(frontend.max_connections),
    )
    try:
        if store.folder is None:
            raise click.UsageError("the worker needs a --store")
        api_keys = ApiKeys(plain_keys(), api_keys_file)
        tokenizer = Tokenizer(resolve_model(model, weights=False), frontend.chat_template, frontend.sampling)
        tokenizer.start_rendering()
        thread = StoreThread(store.folder, durable=store.durable, makes=parent is None)
        listener = socket.socket(fileno=fd)
    except (BatonError, OSError) as error:
        raise CannotStart(error) from error

    async def run() -> bool:
        link = CoreLink(core_endpoint)
        tracing = start_tracing(link, "worker", access_log=frontend.access_log)
        batches = make_batches(link, tokenizer, frontend, thread, store, api_keys)
        worker = Worker(link, tokenizer, thread, batches, api_keys, tracing)
        app = create_worker_app(worker, frontend.keep_alive_s)
        gc.freeze()
        limits = (LOSS_TIMEOUT_S, STALL_TIMEOUT_S, frontend.max_connections, STOP_GRACE_S)
        settings = ServerSettings(*limits, parent, "worker")
        working = asyncio.create_task(worker.run())
        serving = asyncio.create_task(serve(app, link, listener, settings, at_stop=worker.stop))
        try:
            await asyncio.wait((serving, working), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                await working  # raises its error: the scheduler starts another worker
            return await serving
        finally:
            for task in (serving, working):
                task.cancel()
            await asyncio.gather(serving, working, return_exceptions=True)
            link.close()
            thread.close()
            if tracing is not None:
                await tracing.close()

    sys.exit(0 if asyncio.run(run()) else 1)


def make_batches(
    link: CoreLink,
    tokenizer: Tokenizer,
    options: FrontendOptions,
    thread: StoreThread,
    store: StoreOptions,
    api_keys: ApiKeys,
) -> Batches:
    """What runs batches, with everything that it needs. Raises CheckpointError for a model that cannot embed."""
    embedder = read_pooling_models(options).get("embed", PoolingModel(tuple(options.served_model_name), tokenizer))
    reader = RequestReader(link, tokenizer, options, LongWork())
    style = style_of(tokenizer.chat_template, options)
    return Batches(
        BatchTools(
            link=link,
            reader=reader,
            endpoints=line_endpoints(link, reader, style, options.served_model_name[0], embedder),
            store=PatientStore(thread),
            gate=LineGate(),
            keys=api_keys,
            limit_bytes=store.limit_bytes,
        )
    )


if __name__ == "__main__":
    main()
