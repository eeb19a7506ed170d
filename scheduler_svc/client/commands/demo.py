"""`baton demo`: executors go away in the middle of an answer, and the answer goes on."""

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from common.installation import this_command
from scheduler_svc.client.commands.executor_options import num_cpus
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
_STANDBYS = 3


@click.command(epilog=EXIT_CODES_HELP)
@click.option("--max-tokens", default=200, show_default=True, type=click.IntRange(min=10), help="Of each answer.")
@click.pass_context
def command(ctx: click.Context, *, max_tokens: int) -> None:
    """Kill executors in mid-answer, and watch the answer go on.

    Starts a scheduler and executors with the small demo model on free ports of this machine, and ends them at the end.
    Exit code 0 means that the disturbed answers are, letter for letter, those of undisturbed runs.

    \b
    Example:
      baton demo
    """
    port, executor_port = free_ports(2)
    threads = max(1, num_cpus() // 2)  # an executor that starts computes, too
    keeps = sys.platform == "linux"
    with tempfile.TemporaryDirectory(prefix="baton-demo-") as name:
        folder = Path(name)
        spec = FleetSpec(
            port=port,
            executor_port=executor_port,
            scheduler_options=("--journal", str(folder / "journal.sqlite3"), "--no-api-keys"),
            executor_options=("--threads", str(threads)),
            standbys=_STANDBYS if keeps else 0,
            keeper=folder / "keeper.sock" if keeps else None,
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
    from scheduler_svc.client.demo.acts import KillAct, RelayAct, Stage  # noqa: PLC0415  (not for --help)
    from scheduler_svc.client.demo.questions import Completion  # noqa: PLC0415

    standbys = f", {fleet.spec.standbys} standbys and a keeper" if fleet.spec.standbys else ""
    click.echo(f"Starting a scheduler, an executor{standbys} ...")
    fleet.wait_ready()
    click.echo(f"{', '.join(f'{name} (pid {pid})' for name, pid in fleet.pids.items())} at {fleet.spec.url}")
    with connect(ServiceAddress(fleet.spec.url, timeout_s=180.0)) as api:
        stage = Stage(fleet, api)
        model = api.model_name(None)
        request = {"model": model, "prompt": _PROMPT, "max_tokens": max_tokens, "ignore_eos": True}
        question = Completion(api, {**request, "temperature": 0.8, "seed": 3})
        if fleet.spec.standbys:
            stage.wait_for_standby()
            _title(
                "1. One answer, two kills and a rollout; each time a standby goes on (temperature 0.8, a fixed seed)"
            )
            undisturbed = question.answer("reference 1")
            relay = RelayAct(stage, question, "live 1", [max_tokens * i // 4 for i in (1, 2, 3)])
            is_same = _compare(relay.play(), undisturbed)
            click.echo(f"  tokens computed again                      {relay.num_recomputed}")
        else:
            _title("1. The executor is killed in the middle of an answer (temperature 0.8, a fixed seed)")
            undisturbed = question.answer("reference 1")
            is_same = _compare(KillAct(stage, question, "live 1", max_tokens // 3, successor=1).play(), undisturbed)
        is_same &= _show_openai(stage, model, 1 + fleet.spec.standbys)
    baton = this_command()
    rows = (
        (f"{baton} up --standby", "keep it running"),
        ("http://127.0.0.1:8000", "talk with it, and see its memory, in a browser"),
        (f"{baton} chat", "talk with it, in another terminal"),
        (f"{baton} status --watch", "and see what it does"),
    )
    width = max(len(what) for what, _ in rows)
    click.echo("\nNext:\n" + "\n".join(f"  {what:{width}}    {why}" for what, why in rows))
    return is_same


def _show_openai(stage: "Stage", model: str, successor: int) -> bool:
    """The acts through the openai package, where it is installed. They start executors with this index and the next."""
    if importlib.util.find_spec("openai") is None:
        _title("2. A tool call and a JSON answer: left out, as the package openai is not installed")
        return True
    import openai  # noqa: PLC0415  (not for --help; it takes a second)

    from scheduler_svc.client.demo.acts import KillAct  # noqa: PLC0415
    from scheduler_svc.client.demo.questions import Document, ToolCall  # noqa: PLC0415

    client = openai.OpenAI(base_url=f"{stage.fleet.spec.url}/v1", api_key="none", max_retries=0)
    try:
        _title("2. The openai package gets a tool call; the executor is killed while its arguments stream")
        call = ToolCall(client, model, seed=5)
        undisturbed = call.answer("reference 2")
        called = KillAct(stage, call, "live 2", _OPENAI_INTERVENE_AFTER, successor=successor).play()
        call.check(called.text)
        is_same = _compare(called, undisturbed)

        _title("3. The openai package gets JSON by a schema; the executor is killed in the middle of it")
        document = Document(client, model, seed=5)
        undisturbed = document.answer("reference 3")
        written = KillAct(stage, document, "live 3", _OPENAI_INTERVENE_AFTER, successor=successor + 1).play()
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
    label = "longest pause that the client saw"
    if len(result.pauses_s) > 1:
        label = "longest pauses that the client saw"
    pauses = ", ".join(f"{pause_s * 1000:.0f} ms" for pause_s in result.pauses_s)
    click.echo(
        f"\n  {label:41}  {pauses}\n"
        f"  tokens before and after                    {result.num_before} and {result.num_after}\n"
        f"  text identical to the undisturbed run      "
        + click.style("yes" if same else "NO", fg="green" if same else "red", bold=True)
    )
    return same
