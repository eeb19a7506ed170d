"""`baton demo`: an executor is killed in the middle of an answer, and the answer goes on."""

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scheduler_svc.client.errors import EXIT_CODES_HELP, EXIT_FAILED
from scheduler_svc.client.http.connect import connect
from scheduler_svc.client.output import say
from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, free_ports
from scheduler_svc.client.service_address import ServiceAddress

if TYPE_CHECKING:
    from scheduler_svc.client.demo.acts import ActResult, Stage

_PROMPT = "JULIET:\n"
_LOG_LINES = 20
_OPENAI_INTERVENE_AFTER = 20  # pieces


@click.command(epilog=EXIT_CODES_HELP)
@click.option("--max-tokens", default=200, show_default=True, type=click.IntRange(min=10), help="Of each answer.")
@click.pass_context
def command(ctx: click.Context, *, max_tokens: int) -> None:
    """Kill an executor in mid-answer, and watch the answer go on.

    Starts a scheduler and an executor with the small demo model on free ports of this machine, and ends them at the
    end. Exit code 0 means that the disturbed answers are, letter for letter, those of undisturbed runs.

    \b
    Example:
      baton demo
    """
    port, executor_port = free_ports(2)
    threads = max(1, (os.cpu_count() or 1) // 2)  # two executors run at a time
    with tempfile.TemporaryDirectory(prefix="baton-demo-") as name:
        folder = Path(name)
        spec = FleetSpec(
            port=port,
            executor_port=executor_port,
            scheduler_options=("--journal", str(folder / "journal.sqlite3")),
            executor_options=("--threads", str(threads)),
        )
        with LocalFleet(spec, folder) as fleet:
            try:
                identical = _show(fleet, max_tokens)
            except click.ClickException:
                for log in sorted(folder.glob("*.log")):
                    say(f"--- the end of {log.name} ---\n{fleet.log_tail(log.stem, _LOG_LINES)}")
                raise
    if not identical:
        ctx.exit(EXIT_FAILED)


def _show(fleet: LocalFleet, max_tokens: int) -> bool:
    """Show all acts. Returns whether each disturbed answer equals the undisturbed one."""
    from scheduler_svc.client.demo.acts import KillAct, Stage, SwapAct  # noqa: PLC0415  (not for --help)
    from scheduler_svc.client.demo.questions import Completion  # noqa: PLC0415

    click.echo("Starting a scheduler and an executor ...")
    fleet.wait_ready()
    click.echo(f"{', '.join(f'{name} (pid {pid})' for name, pid in fleet.pids.items())} at {fleet.spec.url}")
    third = max_tokens // 3
    with connect(ServiceAddress(fleet.spec.url, timeout_s=180.0)) as api:
        stage = Stage(fleet, api)
        model = api.model_name(None)
        request = {"model": model, "prompt": _PROMPT, "max_tokens": max_tokens, "ignore_eos": True}

        _title("1. The executor is killed in the middle of an answer (temperature 0.8, a fixed seed)")
        question = Completion(api, {**request, "temperature": 0.8, "seed": 3})
        undisturbed = question.answer("reference 1")
        is_same = _compare(KillAct(stage, question, "live 1", third, successor=1).play(), undisturbed)

        _title("2. A rolling swap: one executor joins, the other leaves in the middle of an answer (temperature 0)")
        question = Completion(api, {**request, "temperature": 0})
        undisturbed = question.answer("reference 2")
        fleet.start_executor(2)
        stage.wait_for_executor(2)
        is_same &= _compare(SwapAct(stage, question, "live 2", third).play(), undisturbed)

        is_same &= _show_openai(stage, model)
    click.echo(
        "\nNext:\n"
        "  baton up                 keep it running\n"
        "  baton chat               talk with it, in another terminal\n"
        "  baton status --watch     and see what it does"
    )
    return is_same


def _show_openai(stage: "Stage", model: str) -> bool:
    """The acts through the openai package, where it is installed."""
    if importlib.util.find_spec("openai") is None:
        _title("3. A tool call and a JSON answer: left out, as the package openai is not installed")
        return True
    import openai  # noqa: PLC0415  (not for --help; it takes a second)

    from scheduler_svc.client.demo.acts import KillAct  # noqa: PLC0415
    from scheduler_svc.client.demo.questions import Document, ToolCall  # noqa: PLC0415

    client = openai.OpenAI(base_url=f"{stage.fleet.spec.url}/v1", api_key="none", max_retries=0)
    try:
        _title("3. The openai package gets a tool call; the executor is killed while its arguments stream")
        call = ToolCall(client, model, seed=5)
        undisturbed = call.answer("reference 3")
        called = KillAct(stage, call, "live 3", _OPENAI_INTERVENE_AFTER, successor=3).play()
        call.check(called.text)
        is_same = _compare(called, undisturbed)

        _title("4. The openai package gets JSON by a schema; the executor is killed in the middle of it")
        document = Document(client, model, seed=5)
        undisturbed = document.answer("reference 4")
        written = KillAct(stage, document, "live 4", _OPENAI_INTERVENE_AFTER, successor=4).play()
        document.check(written.text)
        return _compare(written, undisturbed) and is_same
    except (openai.APIError, ValueError) as error:
        raise click.ClickException(f"the openai package's request failed: {error}") from error
    finally:
        client.close()


def _title(text: str) -> None:
    click.secho(f"\n{text}\n", bold=True)


def _compare(result: "ActResult", undisturbed: str) -> bool:
    same = result.text == undisturbed
    click.echo(
        f"\n  longest pause the client saw               {result.pause_s * 1000:.0f} ms\n"
        f"  tokens before and after                    {result.num_before} and {result.num_after}\n"
        f"  text identical to the undisturbed run      "
        + click.style("yes" if same else "NO", fg="green" if same else "red", bold=True)
    )
    return same
