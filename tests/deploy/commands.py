"""Command lines as deployments write them, held against what the commands really take."""

import click

from executor_svc.__main__ import main as baton_executor
from scheduler_svc.__main__ import main as baton_scheduler

COMMANDS = {"baton-scheduler": baton_scheduler, "baton-executor": baton_executor}


def complaints(words: list[str]) -> list[str]:
    """What the command would say against its arguments; nothing if it would take them.

    Paths need not be there, and `$(VARIABLE)` stands for any value.
    """
    name, *arguments = words
    command = COMMANDS.get(name)
    if command is None:
        return [f"there is no command {name}"]
    options = {o: p for p in command.params if isinstance(p, click.Option) for o in (*p.opts, *p.secondary_opts)}
    found: list[str] = []
    rest = iter(arguments)
    for word in rest:
        option, equals, value = word.partition("=")
        if option not in options:
            found.append(f"{name} has no option {option}")
            continue
        parameter = options[option]
        if parameter.is_flag:
            found += [f"{name} {option} takes no value"] if equals else []
            continue
        if not equals and (following := next(rest, None)) is None:
            found.append(f"{name} {option} needs a value")
            continue
        found += _refusals(command, parameter, value if equals else following)
    return found


def _refusals(command: click.Command, parameter: click.Parameter, value: str) -> list[str]:
    if value.startswith("$(") or isinstance(parameter.type, click.Path | click.File):
        return []
    context = click.Context(command, info_name=command.name)
    try:
        converted = parameter.type.convert(value, parameter, context)
        if parameter.callback is not None and not parameter.multiple:
            parameter.callback(context, parameter, converted)
    except click.BadParameter as error:
        return [error.format_message()]
    return []
