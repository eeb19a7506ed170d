"""Command lines as deployments and guides write them, held against what the commands really take."""

import re
from collections.abc import Iterator

import click

from executor_svc.__main__ import main as baton_executor
from keeper_svc.__main__ import main as baton_keeper
from scheduler_svc.__main__ import main as baton_scheduler
from scheduler_svc.client.cli import main as baton

COMMANDS: dict[str, click.Command] = {
    "baton": baton,
    "baton-scheduler": baton_scheduler,
    "baton-executor": baton_executor,
    "baton-keeper": baton_keeper,
}


def complaints(words: list[str]) -> list[str]:
    """What the command would say against its arguments; nothing if it would take them. It is not run.

    `$(VARIABLE)` stands for any value.
    """
    try:
        command, name, arguments = found(words)
        command.make_context(name, [re.sub(r"\$\(\w+\)", "1", word) for word in arguments])
    except click.UsageError as error:
        return [error.format_message()]
    return []


def found(words: list[str]) -> tuple[click.Command, str, list[str]]:
    """The command that these words call, behind all groups; its whole name; its arguments. Raises UsageError."""
    name, *arguments = words
    if name not in COMMANDS:
        raise click.UsageError(f"No such command {name!r}.")
    command, whole_name = COMMANDS[name], name
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        _, below, arguments = command.resolve_command(click.Context(command, info_name=whole_name), arguments)
        assert below is not None
        command, whole_name = below, f"{whole_name} {below.name}"
    return command, whole_name, arguments


def options(command: click.Command) -> set[str]:
    """What it takes, in all spellings."""
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def in_blocks(markdown: str) -> Iterator[str]:
    """The calls of our commands in fenced blocks, also those that something else carries out (docker compose exec)."""
    for block in re.findall(r"^ *```\w*\n(.*?)^ *```", markdown, flags=re.MULTILINE | re.DOTALL):
        yield from in_lines(block)


def in_lines(text: str) -> Iterator[str]:
    """The calls of our commands in a script or a comment; two spaces divide them from what is said about them."""
    by_compose = r"docker compose (?:exec|run --rm)(?: -T| -e \w+)* \w+ "
    before = rf"#?\s*(?:sudo (?:-u \w+ )?)?(?:ExecStart=|{by_compose})?(?:\S*/bin/)?"
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if call := re.match(rf"{before}(baton(?:-\w+)? +(?!#)\S+(?: \S+)*)", line):
            yield call[1]
