"""`baton up`: both services on this machine, kept up until Ctrl-C."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click

from common.model_files import model_name
from scheduler_svc.client.errors import EXIT_CODES_HELP, FleetMisconfigured
from scheduler_svc.client.processes.local_fleet import SCHEDULER, FleetSpec, LocalFleet
from scheduler_svc.client.processes.supervisor import Supervisor
from scheduler_svc.client.service_address import DEFAULT_URL

_POLL_INTERVAL_S = 0.2


@click.command(epilog=EXIT_CODES_HELP)
@click.option("--model", help="Folder or hub id (Qwen/Qwen3-0.6B). Default: the small demo model inside Baton.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to serve HTTP.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535), help="Where to serve HTTP.")
@click.option(
    "--executor-port", default=5555, show_default=True, type=click.IntRange(1, 65535), help="Where executors connect."
)
@click.option("--executors", default=1, show_default=True, type=click.IntRange(min=0), help="How many to start.")
@click.option("--dtype", help="Type of weights and KV cache, for example bfloat16.")
@click.option("--block-size", type=click.IntRange(min=1), help="Tokens in a KV block.")
@click.option("--num-blocks", type=click.IntRange(min=1), help="KV blocks of each executor.")
@click.option(
    "--threads", type=click.IntRange(min=1), help="CPU threads of each executor. Default: its share of the CPUs."
)
@click.option("--max-num-seqs", type=click.IntRange(min=1), help="Sequences an executor runs at once.")
@click.option("--max-batch-tokens", type=click.IntRange(min=1), help="Tokens an executor computes in a step.")
@click.option(
    "--journal",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that lets accepted requests survive the scheduler. Default: one for --port in the user's state folder.",
)
@click.option("--no-journal", is_flag=True, help="Lose open requests when the scheduler ends.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="For both services.")
@click.option("--log-format", type=click.Choice(["logfmt", "json"]), help="For both services.")
@click.option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write each service's log to a file in there instead of to stderr.",
)
def command(
    *,
    model: str | None,
    host: str,
    port: int,
    executor_port: int,
    executors: int,
    threads: int | None,
    journal: Path | None,
    no_journal: bool,
    log_level: str | None,
    log_format: str | None,
    log_dir: Path | None,
    **executor_limits: str | int | None,
) -> None:
    """Run the scheduler and executors on this machine.

    A service that dies is started again, and answers in progress go on. Ctrl-C or SIGTERM stops everything in order:
    executors first, then the scheduler, each with SIGTERM and 10 seconds (a second Ctrl-C: at once).

    \b
    Example:
      baton up --model Qwen/Qwen3-0.6B --executors 2 --port 8000
    """
    if journal is not None and no_journal:
        raise click.UsageError("--journal and --no-journal contradict each other")
    threads = threads or max(1, _num_cpus() // max(1, executors))
    logs = {"log_level": log_level, "log_format": log_format}
    spec = FleetSpec(
        model=model,
        host=host,
        port=port,
        executor_port=executor_port,
        executors=executors,
        scheduler_options=(*_words(journal=journal, **logs), *(("--no-journal",) if no_journal else ())),
        executor_options=_words(threads=threads, **logs, **executor_limits),
    )
    _require_free(host, port, "--port")
    _require_free("127.0.0.1", executor_port, "--executor-port")
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
    run_until_stopped(spec, log_dir)


def run_until_stopped(spec: FleetSpec, log_dir: Path | None = None) -> None:
    """Start the fleet, supervise it, and stop it in order at SIGINT, SIGTERM or SIGHUP.

    Raises:
        FleetError: a child is misconfigured, or dies repeatedly before the service was ready.
        KeyboardInterrupt: a second signal came while the fleet was stopping; everything has been killed.
    """
    with _stop_signals() as stop, LocalFleet(spec, log_dir) as fleet:
        _say(", ".join(f"{name} has pid {pid}" for name, pid in fleet.pids.items()) + "; waiting until they are ready")
        supervisor = Supervisor(fleet, _say)
        announced = False
        while not stop.wait(_POLL_INTERVAL_S):
            if supervisor.poll() and not announced:
                click.echo(_banner(fleet))
                announced = True
        _say("stopping the executors, then the scheduler")


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that the first stop signal sets; the second one raises KeyboardInterrupt."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, on_signal) for number in signals}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _banner(fleet: LocalFleet) -> str:
    spec, pids = fleet.spec, fleet.pids
    name = model_name(spec.model)
    about = "" if spec.model else " (the small demo model inside Baton; --model takes another)"
    executors = ", ".join(f"{child} (pid {pid})" for child, pid in pids.items() if child != SCHEDULER)
    url_option = "" if spec.url == DEFAULT_URL else f" --url {spec.url}"
    body = f'{{"model": "{name}", "prompt": "ROMEO:", "max_tokens": 64}}'
    return f"""
Baton is ready at {spec.url}
  model      {name}{about}
  scheduler  pid {pids.get(SCHEDULER, "-")}
  executors  {executors or "none yet"}

Try, in another terminal:
  baton generate "ROMEO:" --max-tokens 64{url_option}
  curl {spec.url}/v1/completions -H 'Content-Type: application/json' -d '{body}'
"""


def _require_free(host: str, port: int, option: str) -> None:
    """Fail now, with one line, instead of later in the middle of a service's start."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise FleetMisconfigured(f"cannot listen on {host} port {port} ({error.strerror}); see {option}") from error


def _words(**options: str | int | Path | None) -> tuple[str, ...]:
    """Command-line words for the options that have a value; the services know the defaults of the others."""
    given = {name: str(value) for name, value in options.items() if value is not None}
    return tuple(word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value))


def _num_cpus() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _say(line: str) -> None:
    click.echo(f"baton: {line}", err=True)
