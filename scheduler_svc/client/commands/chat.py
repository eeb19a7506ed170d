"""`baton chat`: a conversation with the model."""

import sys
from pathlib import Path
from typing import Any

import click

from scheduler_svc.client.errors import EXIT_CODES_HELP
from scheduler_svc.client.http.connect import connect
from scheduler_svc.client.options import (
    model_option,
    resuming_service_options,
    sampling_options,
    thinking_options,
    tools_option,
)
from scheduler_svc.client.request_files import read_tools, stdin_message
from scheduler_svc.client.service_address import ServiceAddress


@click.command(epilog=EXIT_CODES_HELP)
@click.option("--system", default="", help="Tells the model how to behave.")
@thinking_options
@click.option("--show-thinking", "shows_thought", is_flag=True, help="Write thoughts too, to stderr.")
@tools_option
@sampling_options(default_max_tokens=None)
@model_option
@resuming_service_options
def command(
    *,
    system: str,
    thinking: bool | None,
    reasoning_effort: str | None,
    shows_thought: bool,
    tools_file: Path | None,
    sampling: dict[str, Any],
    model: str | None,
    service: ServiceAddress,
) -> None:
    """Talk with the model.

    /help lists the commands, /exit or Ctrl-D leaves, Ctrl-C stops the answer in progress. With --tools, calls are
    shown, and you are asked for what they gave. If stdin is no terminal, it is one message, and its answer is written
    to stdout: the text, then a line for each call.

    \b
    Example:
      baton chat --system "Answer in one sentence."
      echo "Who was Romeo?" | baton chat --no-thinking
    """
    from scheduler_svc.client.chat.conversation import ChatSettings, Conversation  # noqa: PLC0415  (not for --help)
    from scheduler_svc.client.chat.terminal import talk  # noqa: PLC0415

    tools = {"tools": read_tools(tools_file)} if tools_file is not None else {}
    effort = {"reasoning_effort": reasoning_effort} if reasoning_effort is not None else {}
    with connect(service) as api:
        request = {"model": api.model_name(model), **sampling, **effort, **tools}
        conversation = Conversation(api, ChatSettings(request, thinking, shows_thought), system)
        if sys.stdin.isatty():
            talk(conversation)
        else:
            conversation.ask(stdin_message())
