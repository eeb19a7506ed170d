"""Options of frontends. The scheduler has them too, and passes them on to the frontends that it starts."""

import contextlib
import ipaddress
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import click

from common.errors import BatonError
from common.paths import ExistingPath

ToolParser = Literal["auto", "none", "hermes", "qwen3_coder", "json"]
ReasoningParser = Literal["auto", "none", "qwen3"]
Images = Literal["replace", "refuse"]
PoolingTask = Literal["embed", "score"]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
POOLING_TASKS: tuple[PoolingTask, ...] = get_args(PoolingTask)
_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class PoolingModelOption(NamedTuple):
    """A model of its own for one task.

    Attributes:
        name: that clients ask for; empty for the model's own.
        model: folder, GGUF file or hub id whose tokenizer and configuration to use.
    """

    task: PoolingTask
    name: str
    model: str


@dataclass(frozen=True)
class FrontendOptions:
    """How frontends serve. Each field is the option of its name.

    Attributes:
        served_model_name: names that clients may ask for; the first one is in the answers to all.
        chat_template: file whose chat template takes the place of the model's.
        override_generation_config: `sampling` as JSON.
        tool_parser: how the model writes calls of tools; "auto" reads it off the chat template.
        reasoning_parser: how the model writes its thoughts; "auto" reads it off the chat template.
        stop_in_thoughts: whether stop strings end an answer in its thought, too.
        allow_unknown: whether unknown parameters of a request are ignored instead of refused.
        images: what becomes of an image in an old turn of a conversation, as of other media that no text model reads.
        max_tools: of a request to OpenAI's endpoints; 0 for no limit but those of a body and a grammar.
        cors_origin: origins whose pages may send requests; "*" for all.
        allowed_host: names by which clients without API keys may ask for the service, beside those that it knows.
        trusted_proxy: addresses and networks of proxies that are believed whom they ask for.
        access_log: whether each answer has a line in the log.
        no_page: whether the page for people is not there.
        openapi: whether /openapi.json and /docs are there.
        open_metrics: whether /metrics needs no API key.
        keep_alive_s: seconds of silence of a stream after which it gets a comment.
        stop_grace_s: seconds in which open answers may end when the service is told to stop.
        max_connections: of one frontend; a client may have eight ninths of them if it is alone.
        held_mb: bytes of requests and answers that one frontend holds at once, in MiB; a client may have half of them
            if it is alone.
        max_readers: of one response in the background, and live pages of one client, in one frontend.
        pooling_model: models of their own for embeddings and scores, each `TASK=MODEL` or `TASK:NAME=MODEL`; a task
            without one is the served model's.
    """

    served_model_name: tuple[str, ...] = ()
    chat_template: Path | None = None
    override_generation_config: str | None = None
    tool_parser: ToolParser = "auto"
    reasoning_parser: ReasoningParser = "auto"
    stop_in_thoughts: bool = False
    allow_unknown: bool = False
    images: Images = "replace"
    max_tools: int = 128
    cors_origin: tuple[str, ...] = ()
    allowed_host: tuple[str, ...] = ()
    trusted_proxy: tuple[str, ...] = ()
    access_log: bool = False
    no_page: bool = False
    openapi: bool = False
    open_metrics: bool = False
    keep_alive_s: float = 5.0
    stop_grace_s: float = 25.0
    max_connections: int = 4096
    held_mb: int = 128
    max_readers: int = 32
    pooling_model: tuple[str, ...] = ()

    @property
    def pooling_models(self) -> tuple[PoolingModelOption, ...]:
        """The models that `pooling_model` names. Raises ValueError for what names none, and for a task with two."""
        models = tuple(_pooling_model(value) for value in self.pooling_model)
        for task in POOLING_TASKS:
            if len(named := [model.model for model in models if model.task == task]) > 1:
                raise ValueError(f"the task {task} has one model, not {' and '.join(named)}")
        return models

    @property
    def trusted_proxies(self) -> tuple[Network, ...]:
        """The networks that `trusted_proxy` names. Raises ValueError for what names none."""
        return tuple(map(_network, self.trusted_proxy))

    @property
    def sampling(self) -> dict[str, Any]:
        """Sampling parameters of requests that name none, in place of those that the model's generation_config.json
        recommends. Raises ValueError for what is none."""
        said = {} if self.override_generation_config is None else json.loads(self.override_generation_config)
        if not isinstance(said, dict):
            raise ValueError('it is a JSON object, such as {"temperature": 0.7, "top_p": 0.9}')
        return said

    def arguments(self) -> list[str]:
        """The same as arguments of a command."""
        arguments: list[str] = []
        for field in fields(self):
            name, value = "--" + field.name.removesuffix("_s").replace("_", "-"), getattr(self, field.name)
            if isinstance(value, bool):
                arguments += [name] if value else []
            elif value is not None:
                for each in value if isinstance(value, tuple) else (value,):
                    arguments += [name, str(each)]
        return arguments


def frontend_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets them as `frontend`."""
    default = FrontendOptions()

    @click.option("--served-model-name", multiple=True, help="Name that clients use for the model; may be given "
                  "several times, and the first is in the answers.  [default: the model's own]")  # fmt: skip
    @click.option("--chat-template", type=ExistingPath(dir_okay=False), metavar="FILE",
                  help="File with a chat template (Jinja) in place of the model's own.")  # fmt: skip
    @click.option("--override-generation-config", metavar="JSON", callback=_checked_sampling,
                  help="Sampling parameters of requests that name none, in place of what the model's "
                  'generation_config.json recommends: {"temperature": 0.7, "top_p": 0.9}; top_k, min_p and '
                  "repetition_penalty, too.")  # fmt: skip
    @click.option("--tool-parser", type=click.Choice(get_args(ToolParser)), default=default.tool_parser,
                  help="How the model writes calls of tools; auto reads it off its chat template.")  # fmt: skip
    @click.option("--reasoning-parser", type=click.Choice(get_args(ReasoningParser)), default=default.reasoning_parser,
                  help="How the model writes its thoughts; auto reads it off its chat template.")  # fmt: skip
    @click.option("--stop-in-thoughts", is_flag=True, help="Let stop strings of a request end an answer inside its "
                  "thought, too, and not only after it.")  # fmt: skip
    @click.option("--allow-unknown", is_flag=True, help="Ignore unknown parameters of requests, instead of refusing.")
    @click.option("--images", type=click.Choice(get_args(Images)), default=default.images, show_default=True,
                  help="An image (or sound, video, file) before the last message of a conversation: replace it by a "
                  "line that says so, or refuse the request. One in a user's last message is refused.")  # fmt: skip
    @click.option("--max-tools", type=click.IntRange(0), default=default.max_tools, show_default=True,
                  help="Of one request to OpenAI's endpoints; 0 for no limit. /v1/messages has none.")  # fmt: skip
    @click.option("--cors-origin", multiple=True, help="Origin whose pages may use the API, or * for all; may be given "
                  "several times.")  # fmt: skip
    @click.option("--allowed-host", multiple=True, metavar="NAME", callback=_checked_host_names,
                  help="Name by which clients without API keys may ask for the service, such as a proxy's that passes "
                  "Host on; addresses, localhost and the machine's own name always may. May be given several times.  "
                  "[default: at a loopback address no other name, at any other every name]")  # fmt: skip
    @click.option("--trusted-proxy", multiple=True, metavar="ADDRESS", callback=_checked_proxies,
                  help="Address or network (10.0.0.0/8) of a proxy: a client's address, for the log and without API "
                  "keys for its share, is then the last one that it names in X-Forwarded-For. May be given several "
                  "times.")  # fmt: skip
    @click.option("--access-log", is_flag=True, help="Log a line for each answer: ids, key, endpoint, status, tokens, "
                  "times and executors; nothing of what was asked or answered.")  # fmt: skip
    @click.option("--no-page", is_flag=True, help="Do not serve the page for people at /.")
    @click.option("--openapi", is_flag=True, help="Serve /openapi.json and /docs.")
    @click.option("--open-metrics", is_flag=True, help="Let /metrics be read without an API key, for gateways that "
                  "send none; it names clients.")  # fmt: skip
    @click.option("--keep-alive", "keep_alive_s", type=click.FloatRange(0.1), default=default.keep_alive_s,
                  metavar="SECONDS", help="A stream that is silent for so long gets a comment.")  # fmt: skip
    @click.option("--stop-grace", "stop_grace_s", type=click.FloatRange(0.0), default=default.stop_grace_s,
                  show_default=True, metavar="SECONDS", help="How long open answers may go on after SIGTERM, while an "
                  "executor is there; then they end with an error. A supervisor should wait for 5 s more, as the "
                  "units and manifests do.")  # fmt: skip
    @click.option("--max-connections", type=click.IntRange(1), default=default.max_connections, show_default=True,
                  help="Of one frontend; one API key may have eight ninths of them.")  # fmt: skip
    @click.option("--held-mb", type=click.IntRange(1), default=default.held_mb, show_default=True, metavar="MiB",
                  help="Bytes of requests and answers that one frontend holds at once; one API key may have half of "
                  "them.")  # fmt: skip
    @click.option("--max-readers", type=click.IntRange(1), default=default.max_readers, show_default=True,
                  help="Of one response in the background, and of the live feed by one API key, in one "
                  "frontend.")  # fmt: skip
    @click.option("--pooling-model", multiple=True, metavar="TASK[:NAME]=MODEL", callback=_checked_pooling_models,
                  help="Model whose executors embed or score (TASK is embed or score), as a folder, GGUF file or hub "
                  "id; NAME is what clients call it. May be given for both.  "
                  "[default: the model that generates]")  # fmt: skip
    @wraps(command)
    def with_options(**options: Any) -> Any:
        asked = {field.name: options.pop(field.name) for field in fields(FrontendOptions)}
        return command(frontend=FrontendOptions(**asked), **options)

    return with_options


def _pooling_model(value: str) -> PoolingModelOption:
    left, _, model = value.partition("=")
    said, colon, name = left.partition(":")
    task = next((task for task in POOLING_TASKS if task == said), None)
    if task is None or not model or (colon and not name):
        raise ValueError(f"{value!r} is not TASK=MODEL or TASK:NAME=MODEL, with the task {' or '.join(POOLING_TASKS)}")
    return PoolingModelOption(task, name, model)


def _network(value: str) -> Network:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_network(value)
    told = f"{value!r} is no address and no network, such as 10.0.0.7 or 10.0.0.0/8"
    with contextlib.suppress(ValueError):
        told += f"; the network that this address is in is {ipaddress.ip_network(value, strict=False)}"
    raise ValueError(told)


def _checked_proxies(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    try:
        _ = FrontendOptions(trusted_proxy=values).trusted_proxies
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return values


def _checked_sampling(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from scheduler_svc.frontend.text.sampling_defaults import (  # noqa: PLC0415  (not for --help)
        SamplingDefaults,
        read_sampling_defaults,
    )

    try:
        sampling = FrontendOptions(override_generation_config=value).sampling
        read_sampling_defaults(sampling, "it")
    except (ValueError, BatonError) as error:
        raise click.BadParameter(str(error)) from error
    names = SamplingDefaults.__struct_fields__
    if unknown := sorted(sampling.keys() - set(names)):
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(names)}")
    return value


def _checked_pooling_models(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    try:
        _ = FrontendOptions(pooling_model=values).pooling_models
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return values


def _checked_host_names(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not _HOST_NAME.fullmatch(value):
            raise click.BadParameter(
                f"{value!r} is not a host's name: give the name alone, as in baton.example, without "
                "scheme, port and path, and with all letters in ASCII"
            )
    return values
