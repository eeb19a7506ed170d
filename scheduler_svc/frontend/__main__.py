"""`python -m scheduler_svc.frontend`: one frontend process. The scheduler starts it, or several that share a socket."""

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
from scheduler_svc.frontend.http.api import MAX_BODY_BYTES, MAX_FILE_BYTES, ApiSettings, create_app
from scheduler_svc.frontend.http.callers import served_hosts
from scheduler_svc.frontend.http.server import LISTEN_BACKLOG, ServerSettings, allowed_connections, serve
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.live.hub import LiveHub
from scheduler_svc.frontend.requests.pooling_model import read_pooling_models
from scheduler_svc.frontend.revocations import Revocations, watched
from scheduler_svc.frontend.storing.storage import Storage, in_use
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend.tracing.start import start_tracing
from scheduler_svc.frontend_options import FrontendOptions, frontend_options
from scheduler_svc.key_uses import KeyUses, noting
from scheduler_svc.store_options import StoreOptions, store_options

log = get_logger(__name__)


@click.command(cls=ServiceCommand, service="frontend")
@click.version_option(BUILD, prog_name="baton-frontend")
@click.option("--core-endpoint", required=True, help="ZeroMQ endpoint of the scheduler's core (ipc:// or tcp://).")
@click.option("--fd", type=click.IntRange(min=0), help="An inherited listening TCP socket; instead of --host, --port.")
@click.option("--parent", type=int, help="Process that lent --fd and needs it back: this one ends when it does.")
@click.option("--journaled", is_flag=True, help="The core has a journal: resumable requests survive its end.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port to listen on.")
@click.option(
    "--model", help="Folder, GGUF file or hub id whose tokenizer to use; without it, the embedded demo model."
)
@frontend_options
@click.option("--max-body-bytes", type=click.IntRange(min=1), default=MAX_BODY_BYTES, show_default=True)
@click.option("--max-file-bytes", type=click.IntRange(min=1), default=MAX_FILE_BYTES, show_default=True,
              help="Of a file that is uploaded.")  # fmt: skip
@click.option("--api-keys", "api_keys_file", type=click.Path(dir_okay=False, path_type=Path),
              help="File of API keys (baton keys api).")  # fmt: skip
@click.option("--key-uses", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Note there when API keys are used.")  # fmt: skip
@click.option("--loss-timeout-s", type=click.FloatRange(min=1), default=10.0, show_default=True,
              help="Exit when the core has been silent for so long.")  # fmt: skip
@click.option("--stall-timeout-s", type=click.FloatRange(min=1), default=30.0, show_default=True,
              help="Drop a client that has read nothing for so long.")  # fmt: skip
@store_options
@log_options
def main(
    *,
    core_endpoint: str,
    fd: int | None,
    parent: int | None,
    journaled: bool,
    host: str,
    port: int,
    model: str | None,
    frontend: FrontendOptions,
    max_body_bytes: int,
    max_file_bytes: int,
    api_keys_file: Path | None,
    key_uses: Path | None,
    loss_timeout_s: float,
    stall_timeout_s: float,
    store: StoreOptions,
    log_level: str,
    log_format: str,
) -> None:
    """Serve OpenAI's API over HTTP for a scheduler core. API keys: BATON_API_KEYS, separated by commas."""
    if parent is not None and (die_with_parent := killed_with(parent)) is not None:
        die_with_parent()
    setup_logging("frontend", log_level, log_format)
    give_large_blocks_back()
    try:
        uses = None if key_uses is None or api_keys_file is None else KeyUses(key_uses)
        api_keys = ApiKeys(plain_keys(), api_keys_file, uses)
        tokenizer = Tokenizer(resolve_model(model, weights=False), frontend.chat_template, frontend.sampling)
        tokenizer.start_rendering()
        storage = Storage.open(store, api_keys, makes=parent is None)
        options = replace(
            frontend,
            served_model_name=frontend.served_model_name or (model_name(model),),
            max_connections=allowed_connections(frontend.max_connections),
        )
        pooling = read_pooling_models(options)
        listener = socket.socket(fileno=fd) if fd is not None else _listen(host, port)
    except (BatonError, OSError) as error:
        raise CannotStart(error) from error
    limits = (loss_timeout_s, stall_timeout_s, options.max_connections, options.stop_grace_s)
    server_settings = ServerSettings(*limits, parent, is_journaled=journaled, access_log=options.access_log)
    hosts = served_hosts(listener, options.allowed_host)
    api_settings = ApiSettings(options, api_keys, max_body_bytes, max_file_bytes, pooling, hosts)

    async def run() -> bool:
        link = CoreLink(core_endpoint)
        live = LiveHub(link)
        tracing = start_tracing(link, "frontend", access_log=options.access_log)

        def at_stop() -> None:
            live.stop()
            if storage is not None:
                storage.worker.stop()

        try:
            app = create_app(link, tokenizer, api_settings, storage, live, tracing)
            gc.freeze()  # the model's tables stay; to look through them takes 30 ms, in which no thread has a turn
            async with in_use(storage), noting(uses), watched(Revocations(api_keys, link, storage)):
                return await serve(app, link, listener, server_settings, at_stop=at_stop)
        finally:
            link.close()
            if tracing is not None:
                await tracing.close()

    sys.exit(0 if asyncio.run(run()) else 1)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=LISTEN_BACKLOG)


if __name__ == "__main__":
    main()
