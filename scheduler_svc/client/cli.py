"""The `baton` command: a group that imports a subcommand only when it is used, so that `--help` answers at once."""

import contextlib
import importlib
import os
import sys
from typing import Any

import click

from common.paths import why_not
from common.release import BUILD
from scheduler_svc.client.errors import EXIT_CODES_HELP, EXIT_FAILED, EXIT_INTERRUPTED

COMMANDS = {  # name (also of its module, where the command is called `command`): first line of its help
    "up": "Run the scheduler and executors on this machine.",
    "demo": "Kill executors in mid-answer, and watch the answer go on.",
    "generate": "Continue a prompt.",
    "chat": "Talk with the model.",
    "responses": "Make responses that the service keeps, and follow them.",
    "embed": "Show the vectors of texts.",
    "batch": "Answer a file of requests; goes on where it stopped.",
    "status": "Show the executors, the queue and the throughput.",
    "keeper": "Show what this machine's keeper keeps, or have it drop some.",
    "keys": "Make, list and revoke the keys of executors and clients.",
    "store": "Back up what the service keeps, or restore it.",
    "drain": "Let an executor leave; its sequences go on elsewhere.",
    "ray": "Run a fleet on a Ray cluster.",
    "rollout": "Replace all executors, one by one, while they serve.",
    "bench": "Measure throughput and latency of a running service.",
    "completion": "Write the script that completes `baton` in a shell.",
}


OF_OTHERS = {  # command of Ollama or vLLM: what does that here
    "serve": "baton up --model MODEL serves a model",
    "run": "baton up --model MODEL serves a model, and baton chat talks with it",
    "pull": "baton up --model OWNER/NAME downloads a model from the hub",
    "complete": "baton generate continues a prompt",
    **dict.fromkeys(("list", "ls", "ps", "show"), "baton status shows what is served"),
    **dict.fromkeys(("stop", "down"), "Ctrl-C stops baton up"),
}


class LazyGroup(click.Group):
    """Subcommands are modules of `commands`, found in `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table, which is the order in which a newcomer meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the subcommand's module."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"scheduler_svc.client.commands.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand. Raises click.UsageError, which says what is meant by those of other projects."""
        if hint := OF_OTHERS.get(args[0]):
            raise click.UsageError(f"No such command {args[0]!r}: {hint}.", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of subcommands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command line. An error of the system is one line: a file that was named, or a disk that is full."""
        try:
            try:
                return super().main(*args, **extra)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            sys.exit(EXIT_FAILED)
        except OSError as error:
            what = "" if error.filename else "the output cannot be written: "
            click.echo(f"Error: {what}{why_not(error)}", err=True)
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again at its end
            sys.exit(EXIT_FAILED)

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand; Ctrl-C is exit code 130, where click itself would say `Aborted!` and 1."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            ctx.exit(EXIT_INTERRUPTED)


@click.command(
    cls=LazyGroup,
    epilog=EXIT_CODES_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(BUILD, prog_name="baton")
def main() -> None:
    """Baton: LLM serving whose scheduler and executors can be replaced mid-sentence.

    \b
    Example:
      baton up                              start it (a small demo model comes with it)
      baton generate "ROMEO:"               then, in another terminal
    """
    _open_what_is_closed()


def _open_what_is_closed() -> None:
    """Give a process that was started without stdout or stderr (`2>&-`) ones that show nothing: its next file or socket
    would have that descriptor, and get what children say."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 (as long as the process)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    main(prog_name="baton")
