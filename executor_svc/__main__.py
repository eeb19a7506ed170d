"""`baton-executor`: the command line of the executor service."""

import gc
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common.curve import ClientCurve
from common.errors import BatonError, KeeperError
from common.exit_codes import EXIT_CRASHED
from common.installation import install_command, require_executor, warn_of_shared_files
from common.log_options import CannotStart, ServiceCommand, log_options
from common.logging import get_logger, setup_logging
from common.messages import MAX_NAME_CHARS
from common.parent_death import killed_with
from common.printable import name_fault
from common.release import BUILD
from executor_svc.name_claim import NameClaim
from executor_svc.options import ExecutorOptions
from executor_svc.service.health_file import HealthFile
from executor_svc.service.scheduler_address import FILE_PREFIX, SchedulerAddress, why_no_endpoint

if TYPE_CHECKING:
    from executor_svc.keeper.link import KeeperLink

EPILOG = """\b
Example, two executors of one model for a scheduler on this machine:
  baton-executor --model Qwen/Qwen3-0.6B --threads 8 --kv-cache-memory 4
  baton-executor --model Qwen/Qwen3-0.6B --threads 8 --kv-cache-memory 4

One executor on four GPUs of this machine:
  torchrun --nproc-per-node 4 -m executor_svc --model Qwen/Qwen3-32B

SIGTERM hands the sequences over to other executors and exits with code 0; a second one exits at once.
"""

_MAX_PLACE_CHARS = 128  # of the address of a scheduler, whose end tells files apart


def _check_endpoint(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not value.startswith(FILE_PREFIX) and (fault := why_no_endpoint(value)) is not None:
        raise click.BadParameter(fault)
    return value


def _check_name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not 1 <= len(value) <= MAX_NAME_CHARS:
        raise click.BadParameter(f"it has {len(value)} characters, allowed are 1 to {MAX_NAME_CHARS}")
    if value is not None and (fault := name_fault("it", value)) is not None:
        raise click.BadParameter(fault)
    return value


def _check_node(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    return _check_name(_context, _parameter, value) or "" if value else ""


def _check_place(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"[\w.-]{0,64}", value, re.ASCII):
        raise click.BadParameter(f"{value!r} is no name of up to 64 letters, digits, dots, dashes and underscores")
    return value


@click.command(
    cls=ServiceCommand,
    service="executor",
    epilog=EPILOG,
    context_settings={"show_default": True, "max_content_width": 110},
)
@click.version_option(BUILD, prog_name="baton-executor")
@click.option(
    "--model", help="Folder, GGUF file or hub id of a model (docs/models.md).  [default: the embedded demo model]"
)
@click.option(
    "--scheduler",
    "endpoint",
    default="tcp://127.0.0.1:5555",
    callback=_check_endpoint,
    metavar="ENDPOINT|file:PATH",
    help="Where the scheduler listens, or a file that says so, which is read again when the scheduler is gone.",
)
@click.option(
    "--name",
    callback=_check_name,
    help="Name in the fleet, better unique and the same after a restart.  [default: host and the lowest free number]",
)
@click.option(
    "--node",
    default="",
    envvar="BATON_NODE",
    show_envvar=True,
    callback=_check_node,
    help="Machine that it runs on, as a cluster calls it: `baton status` shows it.",
)
@click.option(
    "--place",
    default="",
    callback=_check_place,
    help="Of several on a machine: a KV cache that is kept is continued in the same place only. An executor and its "
    "standby are in one.  [default: that of all executors of the same --scheduler]",
)
@click.option(
    "--task",
    "tasks",
    type=click.Choice(["generate", "embed", "score"]),
    multiple=True,
    help="What it takes: generation, embeddings, scores of rerankers; may be given more than once.  "
    "[default: embed for an embedding model, else generate]",
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    help="Dtype of weights, activations and KV cache; auto is the checkpoint's (bfloat16 "
    "for a GGUF file, float32 for the demo model).",
)
@click.option(
    "--quantization",
    type=click.Choice(["none", "int8"]),
    default="none",
    help="Quantization of linear layers at the start; int8 is for a CPU and bfloat16: faster, a little less exact.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    help="Device to compute on; auto is a GPU where there is one.",
)
@click.option(
    "--attention",
    type=click.Choice(["auto", "flash_attn", "triton"]),
    default="auto",
    help="Attention kernels on a GPU; auto is flash-attn where it is installed and takes the model, else triton.",
)
@click.option(
    "--block-size",
    type=click.IntRange(1),
    help="Positions in a KV block.  [default: 16, with flash-attn 256, of which it takes multiples]",
)
@click.option("--num-blocks", type=click.IntRange(1), help="KV blocks.  [default: as many as the memory holds]")
@click.option(
    "--kv-cache-memory",
    "kv_cache_memory_gib",
    type=click.FloatRange(0, min_open=True),
    metavar="GIB",
    help="Memory for KV blocks.  [default: a quarter of what is available, or all that could be used; "
    "on a GPU what its utilization leaves]",
)
@click.option(
    "--gpu-memory-utilization",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.9,
    help="Share of a GPU's memory for this executor's weights, activations and KV blocks.",
)
@click.option("--max-num-seqs", type=click.IntRange(1, 65536), help="Sequences in a step.  [default: 64, on a GPU 256]")
@click.option(
    "--max-batch-tokens", type=click.IntRange(1, 2**20), help="Tokens in a step.  [default: 2048, on a GPU 8192]"
)
@click.option("--max-model-len", type=click.IntRange(1), help="Positions in a sequence.  [default: the model's]")
@click.option("--enforce-eager", is_flag=True, help="On a GPU, launch every kernel of every step: no CUDA graphs.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads to compute with.  [default: CPUs of this process]")
@click.option(
    "--pin-threads/--no-pin-threads", default=True, help="Bind a thread to each CPU, if there are as many threads."
)
@click.option(
    "--verify-weights",
    is_flag=True,
    help="Read and hash the checkpoint even if a keeper has the weights of files that look the same.",
)
@click.option(
    "--health-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to touch while the scheduler is heard, for probes.",
)
@click.option(
    "--curve-keys",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder with this executor's secret key and the scheduler's public one (baton keys executor NAME).",
)
@click.option(
    "--keeper",
    "keeper_socket",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="BATON_KEEPER_SOCKET",
    show_envvar=True,
    help="Socket of the keeper, which lets weights and KV cache outlive this process.  [default: baton-keeper's own, "
    "if one runs there]",
)
@click.option("--no-keep", is_flag=True, help="Weights and KV cache end with this process.")
@click.option(
    "--standby",
    is_flag=False,
    flag_value="always",
    type=click.Choice(["never", "always", "auto"]),
    default="never",
    help="Do all but take a KV cache, and go on with that of another executor of this machine as soon as it has ended. "
    "`--standby` alone is always; auto does so if others serve and none waits, so that of several processes with one "
    "command line one is in reserve.",
)
@log_options
def main(
    endpoint: str,
    health_file: Path | None,
    curve_keys: Path | None,
    keeper_socket: Path | None,
    no_keep: bool,
    log_level: str,
    log_format: str,
    **options: Any,
) -> None:
    """Serve a model's forward passes to a Baton scheduler.

    Weights and KV cache live in this process; the scheduler decides what is computed. An executor may be started before
    the scheduler, and finds a scheduler that was restarted. Where a keeper runs (baton-keeper), weights and KV cache
    outlive this process, and another one goes on with them.
    """
    started_at = time.monotonic()
    setup_logging("executor", log_level, log_format)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and (die_with_torchrun := killed_with(os.getppid())):
        die_with_torchrun()  # which starts each rank in a session of its own, where a kill of its group finds no rank
    gc.disable()  # what a start makes stays: to look through it again and again takes a fifth of the start
    log = get_logger("executor")
    warn_of_shared_files(log)
    _require_packages(options["device"])
    from executor_svc.keeper.finding import become_active  # noqa: PLC0415  (--help needs none of these)
    from executor_svc.model.found_model import find_model_here  # noqa: PLC0415
    from executor_svc.service.process import serve  # noqa: PLC0415

    options["place"] = options["place"] or endpoint[-_MAX_PLACE_CHARS:]
    if options["model"] is None:
        log.info("no --model given, serving the embedded demo model")
    claim = None
    rank = os.environ.get("RANK", "0")
    if options["name"] is None:
        del options["name"]
        if rank == "0":  # a group has the name of its first rank
            claim = NameClaim()
            options["name"] = claim.name
    try:
        health = HealthFile(health_file)  # before minutes of loading: removes the file of an earlier process
        address = SchedulerAddress(endpoint)
        curve = ClientCurve.load(curve_keys) if curve_keys is not None else None
        asked = ExecutorOptions(**options)
        model = find_model_here(asked)
        keeper = None if no_keep else _find_keeper(keeper_socket, options, rank)
        _import_torch()
        from executor_svc.startup import start_executor  # noqa: PLC0415  (imports torch)

        started = start_executor(asked, keeper, keeper, model)
        start_s = time.monotonic() - started_at
        gc.enable()
        gc.freeze()
        if started.is_standby:
            assert started.pool is not None
            if not become_active(started.pool, health.set):
                log.info("stopped", exit_code=0)
                sys.exit(0)
    except (BatonError, OSError) as error:
        raise CannotStart(error, KeeperError) from error  # a keeper that ended is started again, as this should be
    health.remove()
    hello, group, pool = started.hello_after(start_s), started.group, started.pool
    log.info("ready", executor=hello.executor, rank=group.rank, scheduler=address.endpoint, encrypted=curve is not None)
    if group.size == 1:
        exit_code = serve(started.runner, hello, address, health, curve, keeper, pool)
        if pool is not None and exit_code != EXIT_CRASHED:
            pool.release()
    else:
        from executor_svc.runner.group_runner import run_in_group  # noqa: PLC0415  (torch again)

        exit_code = run_in_group(
            started.runner, group, lambda leader: serve(leader, hello, address, health, curve, keeper, pool), pool
        )
    if claim is not None:
        claim.release()
    log.info("stopped", exit_code=exit_code)
    if pool is not None:  # its next holder may wait for the end of this process, and nothing here is left to be done
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    sys.exit(exit_code)


def _require_packages(device: str) -> None:
    """End with one line that says how to install what is missing."""
    try:
        require_executor("an executor", device=device)
    except BatonError as error:
        raise CannotStart(error) from error


def _find_keeper(socket: Path | None, options: dict[str, Any], rank: str) -> "KeeperLink | None":
    from executor_svc.keeper.finding import find_keeper  # noqa: PLC0415  (--help needs none)

    name = options.get("name", "") + ("" if rank == "0" else f" rank {rank}")
    return find_keeper(socket, name[:MAX_NAME_CHARS].strip(), is_required=options["standby"] == "always")


def _import_torch() -> None:
    """Import what computes, which takes seconds, or end with one line that says how to install it."""
    try:
        import safetensors  # noqa: F401, PLC0415
        import torch  # noqa: F401, PLC0415
    except (ImportError, OSError) as error:  # OSError: a library that torch loads is missing
        told = BatonError(f"torch cannot be imported: {error}; {install_command('executor')}")
        raise CannotStart(told) from error


if __name__ == "__main__":
    main(prog_name="baton-executor")
