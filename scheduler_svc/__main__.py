"""`baton-scheduler`: the core in this process, the frontends in processes beside it."""

import os
import shutil
import signal
import socket
import tempfile
import time
from types import FrameType

import click
import zmq

from common.errors import CheckpointError
from common.logging import get_logger, setup_logging
from common.model_files import model_name, resolve_model
from scheduler_svc.engine import Engine
from scheduler_svc.frontend_processes import STOP_TIMEOUT_S, FrontendProcesses
from scheduler_svc.scheduler import SchedulerConfig

log = get_logger(__name__)


@click.command(
    context_settings={"show_default": True},
    epilog="Example: baton-scheduler --model Qwen/Qwen3-0.6B --port 8000",
)
@click.option("--model", help="Folder or hub id with the tokenizer.  [default: the embedded demo model]")
@click.option("--served-model-name", help="Name that clients use.  [default: the model's own]")
@click.option("--host", default="127.0.0.1", help="Address of the HTTP server.")
@click.option("--port", default=8000, help="Port of the HTTP server.")
@click.option("--executor-endpoint", default="tcp://127.0.0.1:5555", help="ZeroMQ address that executors connect to.")
@click.option(
    "--frontend-endpoint", help="ZeroMQ address between core and frontends.  [default: a private socket file]"
)
@click.option("--frontends", default=1, type=click.IntRange(0, 64), help="HTTP processes; 0 serves ZeroMQ only.")
@click.option("--api-key", "api_keys", multiple=True, help="Key that clients must send; may be given several times. "
              "Better kept in the environment variable BATON_API_KEYS (comma separated).")  # fmt: skip
@click.option("--window", default=2, type=click.IntRange(1, 8), help="Plans in flight to one executor.")
@click.option("--max-waiting", default=4096, type=click.IntRange(1), help="Sequences that may wait; more get a 429.")
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"]))
def main(
    model: str | None,
    served_model_name: str | None,
    host: str,
    port: int,
    executor_endpoint: str,
    frontend_endpoint: str | None,
    frontends: int,
    api_keys: tuple[str, ...],
    window: int,
    max_waiting: int,
    log_level: str,
) -> None:
    """Run Baton's scheduler service: an OpenAI-compatible HTTP server and the scheduler behind it.

    It needs no GPU and no torch. Executors (baton-executor) connect to it, and may come and go.
    """
    setup_logging("scheduler", log_level)
    name = served_model_name or model_name(model)
    if model is None:
        log.info("no --model given: serving the embedded demo model", model=name)
    if api_keys:
        os.environ["BATON_API_KEYS"] = ",".join(api_keys)  # for the frontends, which must not show it in `ps`
    stopping = _StopFlag()
    run_dir = tempfile.mkdtemp(prefix="baton-")  # mode 0700: nobody else reaches the core's socket
    try:
        folder = resolve_model(model, weights=False)
        listener = _listen(host, port) if frontends else None
        front = frontend_endpoint or f"ipc://{run_dir}/core"
        engine = Engine(executor_endpoint, front, name, SchedulerConfig(window=window, max_waiting=max_waiting))
    except (CheckpointError, OSError, zmq.ZMQError) as error:
        raise click.UsageError(str(error)) from error  # exit code 2: starting again without a change is pointless
    log.info("core started", executors=engine.executor_endpoint, frontends=front, window=window)
    processes = None
    if listener is not None:
        arguments = ["--core-endpoint", front, "--model", str(folder), "--served-model-name", name]
        processes = FrontendProcesses(frontends, listener, [*arguments, "--log-level", log_level])
        log.info("listening", url=f"http://{host}:{listener.getsockname()[1]}", model=name, frontends=frontends)
    try:
        _serve(engine, processes, stopping)
    finally:
        if processes is not None:
            processes.kill()
        engine.close()
        shutil.rmtree(run_dir, ignore_errors=True)
        log.info("stopped")


def _serve(engine: Engine, processes: FrontendProcesses | None, stopping: "_StopFlag") -> None:
    """Turn until a signal comes; then until the frontends have let their open answers end."""
    while not stopping:
        if processes is not None:
            processes.tick(time.monotonic())
        engine.turn()
    log.info("stopping", signal=stopping.signal)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    if processes is not None:
        processes.terminate()
        while processes.alive() and time.monotonic() < deadline:
            engine.turn()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=2048)
    listener.set_inheritable(True)
    return listener


class _StopFlag:
    """True once SIGTERM or SIGINT has come."""

    def __init__(self) -> None:
        self.signal = ""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number).name

    def __bool__(self) -> bool:
        return bool(self.signal)


if __name__ == "__main__":
    main()
