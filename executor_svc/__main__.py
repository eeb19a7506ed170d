"""`baton-executor`: the command line of the executor service."""

import re
import sys
from pathlib import Path

import click

from common.curve import ClientCurve
from common.errors import BatonError
from common.logging import LOG_FORMAT_VARIABLE, LOG_FORMATS, get_logger, setup_logging
from executor_svc.health_file import HealthFile

EPILOG = """\b
Example, two executors of one model for a scheduler on this machine:
  baton-executor --model Qwen/Qwen3-0.6B --threads 8 --kv-cache-memory 4
  baton-executor --model Qwen/Qwen3-0.6B --threads 8 --kv-cache-memory 4

SIGTERM hands the sequences over to other executors and exits with code 0; a second one exits at once.
"""


def _check_endpoint(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"tcp://[^:/\s]+:\d{1,5}|tcp://\[[0-9a-fA-F:.]+\]:\d{1,5}|ipc://.+", value):
        raise click.BadParameter(f"{value!r} is no endpoint such as tcp://127.0.0.1:5555")
    return value


@click.command(epilog=EPILOG, context_settings={"show_default": True, "max_content_width": 110})
@click.option("--model", help="Folder or hub id of a dense Qwen3 model.  [default: the embedded demo model]")
@click.option(
    "--scheduler", "endpoint", default="tcp://127.0.0.1:5555", callback=_check_endpoint, help="Where it listens."
)
@click.option("--name", help="Unique name in the fleet.  [default: host and process id]")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    help="Of weights, activations and KV cache; auto is the checkpoint's (float32 for the demo model).",
)
@click.option("--device", type=click.Choice(["cpu"]), default="cpu", help="What to compute on.")
@click.option("--block-size", type=click.IntRange(1), default=16, help="Positions in a KV block.")
@click.option("--num-blocks", type=click.IntRange(1), help="KV blocks.  [default: as many as the memory holds]")
@click.option(
    "--kv-cache-memory",
    "kv_cache_memory_gib",
    type=click.FloatRange(0, min_open=True),
    metavar="GIB",
    help="Memory for KV blocks.  [default: a quarter of what is available, or all that could be used]",
)
@click.option("--max-num-seqs", type=click.IntRange(1, 65536), default=64, help="Sequences in a step.")
@click.option("--max-batch-tokens", type=click.IntRange(1, 2**20), default=2048, help="Tokens in a step.")
@click.option("--max-model-len", type=click.IntRange(1), help="Positions in a sequence.  [default: the model's]")
@click.option("--threads", type=click.IntRange(1), help="Threads to compute with.  [default: CPUs of this process]")
@click.option(
    "--health-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Touched while the scheduler is heard, for probes.",
)
@click.option(
    "--curve-keys",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder with this executor's secret key and the scheduler's public one (baton keys executor NAME).",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="logfmt",
    envvar=LOG_FORMAT_VARIABLE,
    show_envvar=True,
    help="Of log lines.",
)
def main(
    endpoint: str,
    health_file: Path | None,
    curve_keys: Path | None,
    log_level: str,
    log_format: str,
    **options: object,
) -> None:
    """Serve a Qwen3 model's forward passes to a Baton scheduler.

    Weights and KV cache live in this process; what is computed is the scheduler's choice. It may be started before
    the scheduler, and finds one that was restarted.
    """
    setup_logging("executor", log_level, log_format)
    health = HealthFile(health_file)  # before minutes of loading: one of an earlier process must not speak for this one
    from executor_svc.server import serve  # noqa: PLC0415  (torch takes seconds to import; --help need not wait)
    from executor_svc.startup import ExecutorOptions, start_executor  # noqa: PLC0415

    log = get_logger("executor")
    if options["model"] is None:
        log.info("no --model given, serving the embedded demo model")
    try:
        curve = ClientCurve.load(curve_keys) if curve_keys is not None else None
        runner, hello = start_executor(ExecutorOptions(**options))  # type: ignore[arg-type]  # click checked them
    except BatonError as error:
        click.echo(f"baton-executor: {error}", err=True)
        sys.exit(2)
    log.info("ready", executor=hello.executor, scheduler=endpoint, encrypted=curve is not None)
    exit_code = serve(runner, hello, endpoint, health, curve)
    log.info("stopped", exit_code=exit_code)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
