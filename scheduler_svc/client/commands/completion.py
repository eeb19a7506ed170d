"""`baton completion`: what a shell needs to complete the commands and options of `baton`."""

import click
from click.shell_completion import get_completion_class

from scheduler_svc.client.errors import EXIT_CODES_HELP


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, *, shell: str) -> None:
    """Write the script that completes `baton` in a shell.

    \b
    Example:
      eval "$(baton completion bash)"                              in ~/.bashrc
      eval "$(baton completion zsh)"                               in ~/.zshrc
      baton completion fish > ~/.config/fish/completions/baton.fish
    """
    completion = get_completion_class(shell)
    assert completion is not None, f"click knows {shell}"
    click.echo(completion(ctx.find_root().command, {}, "baton", "_BATON_COMPLETE").source())
