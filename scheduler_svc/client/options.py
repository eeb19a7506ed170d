"""Options that several commands share."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import click

from common.paths import ExistingPath
from scheduler_svc.client.clock import clock_of_command
from scheduler_svc.client.service_address import DEFAULT_URL, ServiceAddress

STATUS_TIMEOUT_S = 10.0  # for requests that the service answers at once

_TIMEOUT_HELP = (
    "Give up after so many seconds in which the service sent nothing. The comments of a stream that waits count: it "
    "is given up only when the service, or the way to it, is gone."
)

_FILE = ExistingPath(dir_okay=False)

Decorated = Callable[..., Any]


def address_options(command: Decorated) -> Decorated:
    """Add `--url` and `--api-key`; the command gets them as `service`."""

    @click.option(
        "--url",
        envvar="BATON_URL",
        show_envvar=True,
        default=DEFAULT_URL,
        show_default=True,
        callback=_http_url,
        help="Where the service is, with or without /v1.",
    )
    @click.option("--api-key", envvar="BATON_API_KEY", show_envvar=True, help="One of the service's keys.")
    @wraps(command)
    def with_service(url: str, api_key: str | None, **options: Any) -> Any:
        return command(service=ServiceAddress(url, api_key, clock=clock_of_command()), **options)

    return with_service


def timeout_option(default_s: float, help_text: str) -> Callable[[Decorated], Decorated]:
    """Add `--timeout`; the command gets it as `timeout_s`."""
    positive = click.FloatRange(min=0, min_open=True)
    return click.option("--timeout", "timeout_s", default=default_s, show_default=True, type=positive, help=help_text)


def service_options(command: Decorated) -> Decorated:
    """Add `--url`, `--api-key` and `--timeout`; the command gets them as `service`."""

    @address_options
    @timeout_option(600.0, _TIMEOUT_HELP)
    @wraps(command)
    def with_timeout(service: ServiceAddress, timeout_s: float, **options: Any) -> Any:
        return command(service=replace(service, timeout_s=timeout_s), **options)

    return with_timeout


def resuming_service_options(command: Decorated) -> Decorated:
    """Add the options of `service_options`, and `--reconnect-timeout`."""

    @service_options
    @click.option(
        "--reconnect-timeout",
        "reconnect_timeout_s",
        default=60.0,
        show_default=True,
        type=click.FloatRange(min=0),
        help="Seconds to wait for a service that restarts in the middle of the work, which then goes on; 0: none.",
    )
    @wraps(command)
    def with_reconnect(service: ServiceAddress, reconnect_timeout_s: float, **options: Any) -> Any:
        return command(service=replace(service, reconnect_timeout_s=reconnect_timeout_s), **options)

    return with_reconnect


def model_option(command: Decorated) -> Decorated:
    """Add `--model`."""
    return click.option("--model", help="Name as in /v1/models. Default: the first one there.")(command)


def tools_option(command: Decorated) -> Decorated:
    """Add `--tools`; the command gets it as `tools_file`, for `request_files.read_tools`."""
    return click.option("--tools", "tools_file", type=_FILE, metavar="FILE.json",
                        help="Tools that the model may call: a list as in OpenAI's `tools`.")(command)  # fmt: skip


def json_schema_option(command: Decorated) -> Decorated:
    """Add `--json-schema`; the command gets it as `schema_file`, for `request_files.read_schema`."""
    return click.option("--json-schema", "schema_file", type=_FILE, metavar="FILE.json",
                        help="JSON schema that the answer matches.")(command)  # fmt: skip


def thinking_options(command: Decorated) -> Decorated:
    """Add `--thinking/--no-thinking` and `--reasoning-effort`."""

    @click.option("--thinking/--no-thinking", default=None, help="Whether the model thinks before it answers.  "
                  "[default: as the model does]")  # fmt: skip
    @click.option("--reasoning-effort", type=click.Choice(["none", "minimal", "low", "medium", "high", "xhigh"]),
                  help="How much it thinks.")  # fmt: skip
    @wraps(command)
    def with_thinking(**options: Any) -> Any:
        return command(**options)

    return with_thinking


def sampling_options(*, default_max_tokens: int | None, limit: str = "max_tokens") -> Callable[[Decorated], Decorated]:
    """Add the options of sampling; the command gets those that were given as `sampling`.

    Args:
        default_max_tokens: of `--max-tokens`; None leaves the limit to the service.
        limit: what the API calls `max_tokens`; the option is called the same, and `--max-tokens`.
    """
    return lambda command: _with_sampling(command, default_max_tokens, limit)


def _with_sampling(command: Decorated, default_max_tokens: int | None, limit: str) -> Decorated:
    """See `sampling_options`.

    The keys of `sampling` are the fields of an OpenAI request body, and vLLM's additions to it: top_k, min_p,
    min_tokens, ignore_eos, repetition_penalty.
    """
    names = (
        *(limit, "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    )
    penalty = click.FloatRange(-2, 2)

    limit_option = f"--{limit.replace('_', '-')}"
    limit_names = dict.fromkeys((limit_option, "--max-tokens"))

    @click.option(*limit_names, limit, default=default_max_tokens, type=click.IntRange(min=1),
                  show_default=default_max_tokens is not None or "no other",
                  help="Limit of tokens, besides the model's own.")  # fmt: skip
    @click.option("--min-tokens", type=click.IntRange(min=0), help="No end before so many tokens.")
    @click.option("--temperature", type=click.FloatRange(min=0), help="0 always takes the likeliest token.")
    @click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Draw from this share of probability.")
    @click.option("--top-k", type=click.IntRange(min=0), help="Draw from the k likeliest tokens; 0 is all.")
    @click.option("--min-p", type=click.FloatRange(0, 1), help="Drop tokens this much less likely than the likeliest.")
    @click.option("--seed", type=click.IntRange(min=0), help="The same seed gives the same text.")
    @click.option("--stop", multiple=True, help="Stop before this text; may be given several times.")
    @click.option("--ignore-eos", is_flag=True, help=f"Go on to {limit_option} whatever the model says.")
    @click.option("--presence-penalty", type=penalty, help="Taken from scores of tokens that the answer has.")
    @click.option("--frequency-penalty", type=penalty, help="The same, for each time that the answer has them.")
    @click.option(
        "--repetition-penalty",
        type=click.FloatRange(0.01, 100),
        help="Above 1 makes tokens of prompt and answer less likely, below 1 more.",
    )
    @wraps(command)
    def with_sampling(**options: Any) -> Any:
        sampling = {name: options.pop(name) for name in names}
        given = {name: value for name, value in sampling.items() if value is not None and value is not False}
        given["stop"] = list(given["stop"])
        return command(sampling=given, **options)

    return with_sampling


def _http_url(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise click.BadParameter(f"{value!r} does not start with http:// or https://")
    return value.rstrip("/").removesuffix("/v1").rstrip("/")  # OpenAI's clients are given the URL with its /v1
