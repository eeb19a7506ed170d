"""Options of `baton-scheduler` about what routers are told."""

import functools
import re
from collections.abc import Callable
from typing import Any

import click

from scheduler_svc.api_key_file import NAME_PATTERN
from scheduler_svc.server.exposure import require_trust_in_routers
from scheduler_svc.server.kv_events import KvEventOptions


def salt_of_group(group: str) -> str:
    """The `cache_salt` that frontends give requests of a cache group (`frontend/api_keys.py`)."""
    return f"group {group}/"


def _topic(_context: click.Context, _option: click.Parameter, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # the command line has bytes that are no UTF-8
        raise click.BadParameter(f"{text!r} is no UTF-8") from error
    return text


def _group(_context: click.Context, _option: click.Parameter, group: str | None) -> str | None:
    if group is not None and re.match(NAME_PATTERN, group) is None:
        raise click.BadParameter(f"{group!r} is no name of a cache group: 1 to 64 of letters, digits, '.', '_' and '-'")
    return group


def kv_event_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options, which it gets as `kv_events`: KvEventOptions, or None without an endpoint.

    They raise click.UsageError for endpoints at which any machine could read prompts, unless the operator wants that.
    """

    @click.option("--kv-events", "kv_events_endpoint", metavar="ENDPOINT",
                  help="ZeroMQ address at which routers are told which blocks are cached, as vLLM tells them "
                  "(tcp://127.0.0.1:5557).  [default: off]")  # fmt: skip
    @click.option("--kv-events-replay", "kv_events_replay", metavar="ENDPOINT",
                  help="ZeroMQ address at which routers ask for what they have missed.  [default: off]")  # fmt: skip
    @click.option("--kv-events-insecure", is_flag=True,
                  help="Bind these two beyond loopback: none but routers can reach them.")  # fmt: skip
    @click.option("--kv-events-topic", default="", show_default=False, metavar="TEXT", callback=_topic,
                  help="Topic of these messages; llm-d wants kv@POD@MODEL.  [default: an empty one]")  # fmt: skip
    @click.option("--kv-events-cache-group", "kv_events_group", metavar="GROUP", callback=_group,
                  help="Tell of the blocks of the API keys with this cache group (baton keys api), instead of those of "
                  "requests without a key and a cache_salt.")  # fmt: skip
    @functools.wraps(command)
    def with_options(
        kv_events_endpoint: str | None,
        kv_events_replay: str | None,
        kv_events_insecure: bool,
        kv_events_topic: str,
        kv_events_group: str | None,
        **rest: Any,
    ) -> Any:
        options = None
        if kv_events_endpoint is not None:
            require_trust_in_routers(kv_events_endpoint, kv_events_replay, insecure=kv_events_insecure)
            salt = "" if kv_events_group is None else salt_of_group(kv_events_group)
            options = KvEventOptions(kv_events_endpoint, kv_events_topic, kv_events_replay, salt, kv_events_group)
        elif kv_events_replay is not None or kv_events_insecure or kv_events_topic or kv_events_group is not None:
            raise click.UsageError("--kv-events-replay, -insecure, -topic and -cache-group need --kv-events")
        return command(kv_events=options, **rest)

    return with_options
