"""Whether an endpoint can be reached from other machines, and what is refused then."""

import ipaddress

import click

LOCAL_TRANSPORTS = ("ipc://", "inproc://")


def is_beyond_loopback(endpoint: str) -> bool:
    """Whether a ZeroMQ endpoint, bound, could be reached from another machine.

    Where that cannot be known (a wildcard, the name of an interface or of a host), the answer is yes.
    """
    if endpoint.startswith(LOCAL_TRANSPORTS):
        return False
    address = endpoint.removeprefix("tcp://")
    return address == endpoint or is_beyond_loopback_host(address.rpartition(":")[0])


def is_beyond_loopback_host(host: str) -> bool:
    """The same for an address without a port; an IPv6 address may stand in brackets."""
    try:
        return not ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return True


def require_keys_beyond_loopback(
    executor_endpoint: str, frontend_endpoint: str | None, *, has_keys: bool, insecure: bool
) -> None:
    """Refuse, with a click.UsageError, endpoints at which any machine could act as an executor or a frontend.


    Args:
        executor_endpoint: may be reached from other machines if executors need keys.
        frontend_endpoint: may not, because frontends have no keys.
        has_keys: whether executors need keys.
        insecure: whether the operator wants no check.
    """
    if insecure:
        return
    if is_beyond_loopback(executor_endpoint) and not has_keys:
        raise click.UsageError(
            f"--executor-endpoint {executor_endpoint} could be reached from other machines, and each of them "
            "could join as an executor and read every prompt. Make keys (baton keys init) and name them by "
            "--curve-keys, or say --insecure if no other machine is on this network."
        )
    if frontend_endpoint is not None and is_beyond_loopback(frontend_endpoint):
        raise click.UsageError(
            f"--frontend-endpoint {frontend_endpoint} could be reached from other machines, and has no keys. Bind it "
            "to loopback or to an ipc:// socket file, or say --insecure if no other machine is on this network."
        )


def require_trust_in_routers(kv_events: str | None, replay: str | None, *, insecure: bool) -> None:
    """Refuse, with a click.UsageError, endpoints of KV events at which any machine could read prompts.

    Args:
        kv_events, replay: endpoints; None for none.
        insecure: whether the operator wants no check.
    """
    for option, endpoint in (("--kv-events", kv_events), ("--kv-events-replay", replay)):
        if endpoint is not None and not insecure and is_beyond_loopback(endpoint):
            raise click.UsageError(
                f"{option} {endpoint} could be reached from other machines, and each of them could read the token ids "
                "of all prompts and answers without a cache_salt: routers know no keys. Bind it to loopback, or say "
                "--kv-events-insecure if no machine but the routers' can reach it; executors need their keys as before."
            )
