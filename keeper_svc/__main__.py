"""`baton-keeper`: the command line of the keeper."""

import os
import resource
import secrets
import signal
import socket
import time
from pathlib import Path

import click

from common.errors import KeeperError
from common.keeper_socket import default_socket
from common.log_options import CannotStart, ServiceCommand, log_options
from common.logging import get_logger, setup_logging
from common.release import BUILD
from keeper_svc.keeper import DEFAULT_KEEP_FOR_S, Keeper, KeeperConfig
from keeper_svc.listening import Listening
from keeper_svc.server import Server

log = get_logger("keeper")


@click.command(
    cls=ServiceCommand,
    service="keeper",
    context_settings={"show_default": True, "max_content_width": 110},
    epilog="Example: baton-keeper --max-memory 64",
)
@click.version_option(BUILD, prog_name="baton-keeper")
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="BATON_KEEPER_SOCKET",
    show_envvar=True,
    help="Where to listen, in a folder that only this user can open.  "
    "[default: keeper.sock in $XDG_RUNTIME_DIR/baton, /tmp/baton-UID or ~/.baton-HOST]",
)
@click.option(
    "--max-memory",
    "max_memory_gib",
    type=click.FloatRange(0, min_open=True),
    metavar="GIB",
    help="Of this machine's memory, for all pools and weights there.  [default: four fifths of it]",
)
@click.option(
    "--keep-for",
    "keep_for_s",
    type=click.FloatRange(0),
    default=DEFAULT_KEEP_FOR_S,
    metavar="SECONDS",
    help="How long a pool without a holder, and weights without a user, are kept.",
)
@log_options
def main(
    socket_path: Path | None, max_memory_gib: float | None, keep_for_s: float, log_level: str, log_format: str
) -> None:
    """Keep the KV memory and the weights of this machine's executors, so that they outlive them.

    It holds descriptors of files, and neither reads nor maps what is in them. It may end at any time: executors go on,
    and bring what they have to the next keeper.
    """
    setup_logging("keeper", log_level, log_format)
    path = socket_path if socket_path is not None else default_socket()
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    max_bytes = int(max_memory_gib * 2**30) if max_memory_gib is not None else machine_bytes * 4 // 5
    _allow_many_files()
    config = KeeperConfig(max_bytes, keep_for_s)
    try:
        with Listening(path) as listening:
            keeper = Keeper(config, secrets.token_hex(8), os.getpid(), lambda: secrets.token_hex(16), time.monotonic())
            server = Server(keeper, listening.socket, log)
            _stop_on_signals(server)
            log.info("ready", socket=str(path), pid=os.getpid(), max_bytes=max_bytes, keep_for_s=keep_for_s)
            server.run()
    except (KeeperError, OSError) as error:
        raise CannotStart(error) from error
    log.info("stopped")


def _allow_many_files() -> None:
    """A full keeper has some 1,500 files open; the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _stop_on_signals(server: Server) -> None:
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the loop acts on it; here it must only not kill
    signal.set_wakeup_fd(wake.detach())
    server.poll(woken.detach(), server.stop)


if __name__ == "__main__":
    main(prog_name="baton-keeper")
