"""`baton-scheduler`: the core in this process, the frontends in processes beside it."""

import contextlib
import os
import resource
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType

import click

from common.curve import ServerCurve
from common.errors import BatonError
from common.exit_codes import EXIT_CRASHED, EXIT_OK
from common.grammars import grammar_library
from common.installation import warn_of_shared_files
from common.log_options import CannotStart, ServiceCommand, log_options
from common.logging import get_logger, setup_logging
from common.model_files import model_name, resolve_model
from common.release import BUILD
from common.vocabulary import read_vocabulary
from scheduler_svc.api_key_file import read_key_file, unnamed
from scheduler_svc.api_key_options import API_KEYS_VARIABLE, api_key_options, plain_keys, require_keys_or_consent
from scheduler_svc.core.autoscaling.settings import DEFAULT_TARGET_TTFT_S, ScaleSettings, scale_settings
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.fleet.fleet import MAX_MEMBERS
from scheduler_svc.core.fleet.step_clock import DEFAULT_FLOOR_S
from scheduler_svc.core.requests.request_manager import RECONNECT_GRACE_S
from scheduler_svc.core.requests.returning_clients import RETURN_WITHIN_S
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.scheduling.pools import LONGEST_WAIT_S
from scheduler_svc.frontend_options import FrontendOptions, frontend_options
from scheduler_svc.kv_event_options import kv_event_options
from scheduler_svc.server.addresses import listen, private_endpoint
from scheduler_svc.server.core_process import CoreProcess
from scheduler_svc.server.exposure import is_beyond_loopback_host, require_keys_beyond_loopback
from scheduler_svc.server.frontend_processes import STOP_MARGIN_S, FrontendProcesses, WorkerStart
from scheduler_svc.server.garbage import spare_the_old
from scheduler_svc.server.journal import Journal, JournalError
from scheduler_svc.server.kv_events import KvEventOptions
from scheduler_svc.server.store_folder import StoreFolder
from scheduler_svc.store_options import StoreOptions, state_folder, store_options

log = get_logger(__name__)


@click.command(
    cls=ServiceCommand,
    service="scheduler",
    context_settings={"show_default": True},
    epilog="Example: baton-scheduler --model Qwen/Qwen3-0.6B --port 8000",
)
@click.version_option(BUILD, prog_name="baton-scheduler")
@click.option("--model", help="Folder, GGUF file or hub id with the tokenizer.  [default: the embedded demo model]")
@frontend_options
@click.option("--host", default="127.0.0.1", help="Address of the HTTP server.")
@click.option("--port", default=8000, type=click.IntRange(0, 65535), help="Port of the HTTP server.")
@click.option("--executor-endpoint", default="tcp://127.0.0.1:5555", help="ZeroMQ address that executors connect to.")
@click.option("--frontend-endpoint", help="ZeroMQ address between core and frontends.  [default: a private one]")
@click.option("--frontends", default=1, type=click.IntRange(0, 64), help="HTTP processes; 0 serves ZeroMQ only.")
@click.option("--api-key", "api_keys", multiple=True, help="Key that clients must send; may be given several times. "
              "Better kept in the environment variable BATON_API_KEYS (comma separated).")  # fmt: skip
@api_key_options(exists=False)
@click.option("--curve-keys", type=click.Path(file_okay=False, path_type=Path),
              help="Folder with the scheduler's secret key and the keys of executors that may connect (baton keys); "
              "these are read again when they change.")  # fmt: skip
@click.option("--insecure", is_flag=True, help="Bind the ports of executors and frontends beyond loopback "
              "without keys: the network is trusted.")  # fmt: skip
@kv_event_options
@click.option(
    "--window", default=SchedulerConfig.window, type=click.IntRange(1, 8), help="Plans in flight to one executor."
)
@click.option("--max-waiting", default=SchedulerConfig.max_waiting, type=click.IntRange(1),
              help="Sequences of each task that may wait; more get a 429, and a request of more than this "
              "a 400.")  # fmt: skip
@click.option("--step-timeout", "step_floor_s", default=DEFAULT_FLOOR_S, type=click.FloatRange(0.1), metavar="SECONDS",
              help="Shortest time after which an executor counts as hung that lives and does not answer a plan; "
              "10 times its longest comparable step, if that is more.")  # fmt: skip
@click.option("--adoption-wait", "adoption_wait_s", default=LONGEST_WAIT_S, type=click.FloatRange(0.0),
              metavar="SECONDS", help="How long at most sequences wait for the next executor of the memory that they "
              "are in, while others could compute them anew; with a standby half a second.")  # fmt: skip
@click.option("--task-grace", "task_grace_s", default=SchedulerConfig.task_grace_s, type=click.FloatRange(0.0),
              metavar="SECONDS", help="How long after the first executor others may come that take another task, such "
              "as embed; then requests of a task that none has ever taken get a 400 instead of a 503.")  # fmt: skip
@click.option("--reconnect-grace", "reconnect_grace_s", default=RECONNECT_GRACE_S, type=click.FloatRange(0.0),
              metavar="SECONDS", help="How long a request goes on whose client's connection broke; after a restart, "
              f"{RETURN_WITHIN_S:.0f} s at least.")  # fmt: skip
@click.option("--min-executors", type=click.IntRange(0), metavar="N",
              help="Fewest executors to want; needs --max-executors.  [default: 1]")  # fmt: skip
@click.option("--max-executors", type=click.IntRange(1, MAX_MEMBERS), metavar="N",
              help="Most executors to want: status and metrics say how many are wanted; baton ray or KEDA starts "
              "them.  [default: no number is wanted]")  # fmt: skip
@click.option("--target-ttft", "target_ttft_s", type=click.FloatRange(0.0, min_open=True), metavar="SECONDS",
              help="Want so many executors that requests get their first token within so long; needs --max-executors.  "
              f"[default: {DEFAULT_TARGET_TTFT_S:.0f}]")  # fmt: skip
@click.option("--journal", "journal_path", type=click.Path(dir_okay=False, path_type=Path),
              help="File that accepted requests and their tokens are written to, so that they survive the scheduler.  "
              "[default: journal-PORT.sqlite3 in $XDG_STATE_HOME/baton]")  # fmt: skip
@click.option("--journal-durable", is_flag=True, help="Wait for the disk at each batch: survives a power cut as well.")
@click.option("--no-journal", is_flag=True, help="Lose open requests when the scheduler ends.")
@store_options
@click.option("--no-store", is_flag=True, help="Keep no responses, files and batches.")
@log_options
def main(
    model: str | None,
    frontend: FrontendOptions,
    host: str,
    port: int,
    executor_endpoint: str,
    frontend_endpoint: str | None,
    frontends: int,
    api_keys: tuple[str, ...],
    api_keys_file: Path | None,
    no_api_keys: bool,
    curve_keys: Path | None,
    insecure: bool,
    kv_events: KvEventOptions | None,
    window: int,
    max_waiting: int,
    step_floor_s: float,
    adoption_wait_s: float,
    task_grace_s: float,
    reconnect_grace_s: float,
    min_executors: int | None,
    max_executors: int | None,
    target_ttft_s: float | None,
    journal_path: Path | None,
    journal_durable: bool,
    no_journal: bool,
    store: StoreOptions,
    no_store: bool,
    log_level: str,
    log_format: str,
) -> None:
    """Run Baton's scheduler service: an OpenAI-compatible HTTP server and the scheduler behind it.

    It needs no GPU and no torch. Executors (baton-executor) connect to it, and may come and go.
    """
    require_keys_beyond_loopback(
        executor_endpoint, frontend_endpoint, has_keys=curve_keys is not None, insecure=insecure
    )
    if store.folder is not None and no_store:
        raise click.UsageError("--store and --no-store contradict each other")
    if api_keys:
        os.environ[API_KEYS_VARIABLE] = ",".join(api_keys)  # for the frontends, which must not show it in `ps`
    if frontends:
        require_keys_or_consent(api_keys_file, no_api_keys, curve_keys, journal_path and journal_path.parent)
    scale = _scale(min_executors, max_executors, target_ttft_s)
    setup_logging("scheduler", log_level, log_format)
    frontend = replace(frontend, served_model_name=frontend.served_model_name or (model_name(model),))
    name = frontend.served_model_name[0]
    if model is None:
        log.info("no --model given: serving the embedded demo model", model=name)
    stopping = _StopFlag()
    _prepare_process()
    with contextlib.ExitStack() as stack:
        processes = None
        try:
            curve = ServerCurve.load(curve_keys) if curve_keys is not None else None
            # Only frontends need the file, but a mistake in it is to end this command.
            keys = read_key_file(api_keys_file) if api_keys_file is not None else ()
            needs_keys = api_keys_file is not None or bool(plain_keys())
            client_ids = (
                {key.name: key.client_id for key in (*keys, *map(unnamed, plain_keys()))} if needs_keys else None
            )
            group = kv_events.cache_group if kv_events is not None else None
            if frontends and group is not None and all(key.cache_group != group for key in keys):
                log.warning("no API key has the cache group that routers are told of", cache_group=group)
            folder = resolve_model(model, weights=False)
            listener = listen(host, port, lambda: bool(stopping)) if frontends else None
            front = frontend_endpoint or stack.enter_context(private_endpoint())
            config = CoreConfig(
                model=name,
                # Without frontends and a model nothing here gives token ids a meaning.
                vocabulary=read_vocabulary(folder) if frontends or model is not None else None,
                pooling_vocabularies={
                    option.task: read_vocabulary(resolve_model(option.model, weights=False))
                    for option in frontend.pooling_models
                },
                scheduler=SchedulerConfig(
                    window=window,
                    max_waiting=max_waiting,
                    grammars=grammar_library(),
                    adoption_wait_s=adoption_wait_s,
                    task_grace_s=task_grace_s,
                    announced_salt=None if kv_events is None else kv_events.salt,
                    address_key=secrets.token_bytes(32),
                ),
                step_floor_s=step_floor_s,
                reconnect_grace_s=reconnect_grace_s,
                scale=scale,
                client_ids=client_ids,
            )
            journal = None
            if not no_journal:
                path = journal_path or _default_journal(listener, executor_endpoint)
                journal = Journal(path, durable=journal_durable)
                store = replace(store, folder=store.folder or path.with_suffix(".store"))
            store = replace(store, folder=None) if no_store or listener is None else store  # only frontends keep things
            if listener is not None:
                arguments = ["--core-endpoint", front, "--model", str(folder), *frontend.arguments()]
                arguments += [*store.arguments(), "--log-level", log_level, "--log-format", log_format]
                arguments += ["--api-keys", str(api_keys_file)] if api_keys_file is not None else []
                worker = _worker(store, arguments, client_ids, stack, lambda: bool(stopping))
                if journal is not None:
                    arguments = [*arguments, "--journaled", "--key-uses", str(journal.path.parent)]
                processes = FrontendProcesses(frontends, listener, arguments, worker)
                stack.callback(processes.kill)
            others = curve, processes, kv_events, api_keys_file, store
            core_process = CoreProcess(executor_endpoint, front, config, journal, *others)
        except (BatonError, OSError) as error:
            raise CannotStart(error) from error
        where = {"executors": core_process.executor_endpoint, "encrypted": curve is not None, "frontends": front}
        kept = {"journal": "off" if journal is None else str(journal.path), "store": str(store.folder or "off")}
        log.info("core started", **where, window=window, **kept)
        if (events := core_process.kv_events) is not None:
            log.info("telling routers what is cached", endpoint=events.endpoint, replay=events.replay_endpoint or "off")
        if listener is not None:
            if is_beyond_loopback_host(host) and not needs_keys:
                log.warning("HTTP can be reached from other machines and asks nobody for a key", host=host)
            log.info("listening", url=f"http://{host}:{listener.getsockname()[1]}", model=name, frontends=frontends)
        exit_code = _serve(core_process, processes, stopping, frontend.stop_grace_s)
    sys.exit(exit_code)


def _serve(
    core_process: CoreProcess, processes: FrontendProcesses | None, stopping: "_StopFlag", stop_grace_s: float
) -> int:
    """Turn until the service is to end, and end it. Returns the exit code: that of a frontend if it cannot start."""
    try:
        exit_code = _turn(core_process, processes, stopping, stop_grace_s)
    except Exception:
        core_process.crashed()
        return EXIT_CRASHED
    core_process.close()
    log.info("stopped")
    return exit_code


def _turn(
    core_process: CoreProcess, processes: FrontendProcesses | None, stopping: "_StopFlag", stop_grace_s: float
) -> int:
    """Turn until a signal comes, and then until the frontends have ended, which let open answers end first; a second
    signal ends that."""
    spare_the_old()
    while not stopping:
        if processes is not None:
            processes.tick(time.monotonic(), core_process.core.requests.frontends.pids)
            if processes.refusal is not None:
                log.error("stopping: a frontend cannot start", exit_code=processes.refusal)
                return processes.refusal
        core_process.turn()
    num_open = core_process.core.requests.table.num_open
    log.info("stopping", signal=stopping.signal, open_requests=num_open, grace_s=stop_grace_s)
    deadline = time.monotonic() + stop_grace_s + STOP_MARGIN_S
    if processes is not None:
        processes.terminate()
        while processes.alive() and time.monotonic() < deadline and stopping.count == 1:
            core_process.turn()
    return EXIT_OK


def _scale(min_executors: int | None, max_executors: int | None, target_ttft_s: float | None) -> ScaleSettings | None:
    try:
        return scale_settings(min_executors, max_executors, target_ttft_s)
    except BatonError as error:
        raise click.UsageError(str(error)) from error


def _worker(
    store: StoreOptions,
    arguments: list[str],
    client_ids: Mapping[str, str] | None,
    stack: contextlib.ExitStack,
    is_stopping: Callable[[], bool],
) -> WorkerStart | None:
    """The worker of the store, which this process has until the stack ends; None without a store."""
    if store.folder is None:
        return None
    opened = StoreFolder(store.folder, durable=store.durable, client_ids=client_ids, is_stopping=is_stopping)
    stack.callback(opened.close)
    return WorkerStart(opened.listener, arguments, is_due=opened.has_work)


def _default_journal(listener: socket.socket | None, executor_endpoint: str) -> Path:
    """A file in the user's state folder, which is made; one for each port, because a journal is one scheduler's.

    Raises:
        JournalError: the user has no home, or may not make the folder.
    """
    port = listener.getsockname()[1] if listener is not None else executor_endpoint.rpartition(":")[2]
    try:
        folder = state_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError) as error:  # the latter for a user without a home
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else "the user has no home"
        options = "name a file by --journal, or a folder by XDG_STATE_HOME; --no-journal keeps nothing"
        raise JournalError(f"journal and store have no place: {reason}; {options}") from error
    return folder / f"journal-{port}.sqlite3"


def _prepare_process() -> None:
    """Warn of what is installed beside it, and raise the limit of files as far as this process may: each connection is
    a file, and strangers could use up the default's few."""
    warn_of_shared_files(log)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # macOS says "unlimited" and takes less
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _StopFlag:
    """True once SIGTERM or SIGINT has come; `count` says how often."""

    def __init__(self) -> None:
        self.signal = ""
        self.count = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number).name
        self.count += 1

    def __bool__(self) -> bool:
        return bool(self.signal)


if __name__ == "__main__":
    main(prog_name="baton-scheduler")
