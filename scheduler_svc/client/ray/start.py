"""The first revision of a fleet on Ray: what it needs to know, and what its operator is told."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from common.curve import KeyPair
from common.installation import this_command
from scheduler_svc.api_key_file import ApiKey, digest, encode_key_file, new_key, read_key_file
from scheduler_svc.client.errors import FleetMisconfigured
from scheduler_svc.client.processes.words import first_try
from scheduler_svc.client.ray.operator import Operator, fleet_option, say
from scheduler_svc.client.ray.spec import RayFleetSpec
from scheduler_svc.client.ray.view import journal_words

_OPEN = ", and whoever reaches that address is served: see --api-keys and --host"
_STATUS_KEY_NAME = "baton-ray"


def new_spec(operator: Operator, *, api_keys_file: Path | None, **facts: Any) -> RayFleetSpec:
    """What the manager has to know: what was asked for, and keys, which are made here.

    Args:
        api_keys_file: of `baton keys api`; the manager gets one key more, which may only read /status.
        facts: other fields of the spec.

    Raises:
        FleetMisconfigured: the file cannot be used.
    """
    api_keys, status_key = None, ""
    if api_keys_file is not None:
        keys, status_key = read_key_file(api_keys_file), new_key()
        if any(key.name == _STATUS_KEY_NAME for key in keys):
            raise FleetMisconfigured(
                f"{api_keys_file} has a key of the name {_STATUS_KEY_NAME}, which `baton ray` takes"
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        own = ApiKey(name=_STATUS_KEY_NAME, sha256=digest(status_key), created=now, metrics=True)
        api_keys = encode_key_file([*keys, own]).decode()
    return RayFleetSpec(
        name=operator.fleet,
        server_keys=KeyPair.generate(),
        scheduler_node=operator.node(),
        scheduler_env=operator.runtime_env,
        executor_env=operator.runtime_env,
        api_keys=api_keys,
        status_key=status_key,
        **facts,
    )


def announce(operator: Operator, spec: RayFleetSpec, timeout_s: float) -> None:
    """Wait until the fleet is complete, and say where it is, and what is lost when."""
    view = operator.wait(lambda view: view.is_complete, timeout_s, say)
    if spec.journal is not None:
        view = operator.wait(lambda view: view.journal_blind is not None, timeout_s, say)
    addresses = sorted({host.report.address for host in view.seen.hosts if host.report is not None})
    is_local = spec.host in ("127.0.0.1", "::1", "localhost")
    keys = "clients need one (--api-keys)" if spec.api_keys else "clients need none" + ("" if is_local else _OPEN)
    key = "BATON_API_KEY=KEY " if spec.api_keys else ""  # not an option, which other users see
    baton = this_command()
    click.echo(f"""
Baton is ready at {view.url}
  executors  {len(view.seen.ready or ())} on {", ".join(addresses)}
  journal    {journal_words(view, spec)}
  API keys   {keys}

Try:
  {key}{baton} {first_try(is_demo=spec.model is None)} --url {view.url}
  {key}{baton} status --url {view.url}
  {baton} ray status{fleet_option(spec.name)}
""")
