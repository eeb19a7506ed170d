"""docs/operations.md, and what leads beyond one machine, are true of the code, where that can be checked."""

import re
import shlex

import click
import pytest
import yaml

from common.exit_codes import EXIT_CRASHED, EXIT_REJECTED, EXIT_TRY_AGAIN, EXIT_USAGE
from common.heartbeats import LOSS_TIMEOUT_S
from executor_svc.service import registration
from scheduler_svc.client import cli as client_cli
from scheduler_svc.core.fleet import fleet, probation, step_clock
from scheduler_svc.core.requests import recovery, request_manager, retention, returning_clients
from scheduler_svc.frontend import api_keys
from scheduler_svc.frontend.http import accounts, api, body_limit, connection_guard, strict_h11
from scheduler_svc.frontend.http.connection_guard import ConnectionLimits
from scheduler_svc.frontend.link import core_link, delta_queue
from scheduler_svc.frontend_options import FrontendOptions
from scheduler_svc.server import addresses, core_process, curve_auth
from tests.deploy import commands
from tests.deploy.manifests import ROOT
from tests.deploy.probes import MAX_WAIT_S, PATIENCE_S

OPTIONS = FrontendOptions()
PLACES = OPTIONS.max_connections - accounts.RESERVED_PLACES
LARGEST_SHARE = PLACES * accounts.PLACES_OF_FREE // (1 + accounts.PLACES_OF_FREE)
LIMITS = ConnectionLimits(OPTIONS.max_connections)
GUIDE = (ROOT / "docs" / "operations.md").read_text()
SCALE = "".join((ROOT / "docs" / name).read_text() for name in ("scale.md", "kubernetes.md"))
README = (ROOT / "README.md").read_text()
COMPOSE_HEAD = (ROOT / "compose.yaml").read_text().partition("\nname:")[0]
FOREIGN = {  # options of docker, kubectl, pip and systemctl
    *("--constraint", "--extra-index-url", "--rm", "--user", "--cap-add"),
    *("--build", "--detach", "--wait", "--scale", "--replicas", "--grace-period", "--from-file", "--dry-run"),
    *("--build-arg", "--upgrade", "--yes", "--cascade", "--since", "--force", "--now", "--from-literal"),
}
CALLS = [*commands.in_blocks(GUIDE + SCALE), *commands.in_blocks(README), *commands.in_lines(COMPOSE_HEAD)]
MENTIONS = [" ".join(code.split()) for code in re.findall(r"(?<!`)`(baton(?:-\w+)?\s[^`]+)`(?!`)", GUIDE + SCALE)]


@pytest.mark.parametrize("call", CALLS)
def test_what_is_to_be_typed_would_be_taken(call):
    """Each by its own command: an option that another one has is no use."""
    assert commands.complaints(shlex.split(call)) == []


@pytest.mark.parametrize("mention", MENTIONS)
def test_what_is_mentioned_is_there(mention):
    """In running text values may be missing."""
    command, _, arguments = commands.found(shlex.split(mention))
    assert {word for word in arguments if word.startswith("--")} <= commands.options(command)


def test_nothing_to_be_typed_is_overlooked():
    """What finds calls finds those of all commands, and those that something else carries out. A keeper is called by
    its unit, which has a test of its own, and else without arguments."""
    assert {call.split()[0] for call in CALLS} | {"baton-keeper"} == commands.COMMANDS.keys()
    assert len(MENTIONS) > 10
    for part in ("baton keys api", "baton keys executor", "baton drain NAME"):
        assert any(call.startswith(part) for call in CALLS), part


def test_options_are_there():
    """Also those that are named without their command."""
    ours = {option for command in every_command(click.Context(commands.baton)) for option in commands.options(command)}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", GUIDE))
    assert named
    assert named <= ours | FOREIGN


def every_command(context: click.Context):
    yield from (commands.baton_scheduler, commands.baton_executor, commands.baton_keeper)
    for name in client_cli.COMMANDS:
        command = commands.baton.get_command(context, name)
        yield command
        yield from command.commands.values() if isinstance(command, click.Group) else ()


@pytest.mark.parametrize(
    "fact",
    [
        f"after {LOSS_TIMEOUT_S} s if there was no time",
        f"at least `--step-timeout` ({step_clock.DEFAULT_FLOOR_S:.0f} s)",
        f"{step_clock.FIRST_STEP_LIMIT_S:.0f} s for its very first steps",
        f"after {step_clock.PATIENCE:.0f} times its longest comparable step",
        f"none lost for {request_manager.RECONNECT_GRACE_S:.0f} s (`--reconnect-grace`)",
        f"| {retention.RETAIN_S / 60:.0f} minutes, {retention.MAX_RETAINED:,} requests, ",
        f", {retention.MAX_RETAINED_BYTES // 2**20} MiB of tokens and log-probabilities |",
        f"for {returning_clients.RETURN_WITHIN_S:.0f} s after the start of the new scheduler (`--reconnect-grace`, if",
        f"| {returning_clients.RETURN_WITHIN_S:.0f} s, or the reconnect grace if that is longer |",
        f"| {delta_queue.MAX_WAITING_TOKENS:,} | | `reader_too_slow` |",
        f"| body of a request | {api.MAX_BODY_BYTES // 2**20} MiB; none of a GET request | | 413 |",
        f"| {strict_h11.MEAN_CHUNK_BYTES} bytes on average, from {strict_h11.MAX_SMALL_CHUNKS} chunks on; no",
        f", without the first {body_limit.SMALL_BODY_BYTES // 2**10} KiB of each body | {OPTIONS.held_mb} MiB,",
        f"leaves free of {PLACES:,} places: {LARGEST_SHARE:,} if it is alone. Administrators have",
        f"have {accounts.RESERVED_PLACES} places more",
        f"in a frontend | {OPTIONS.max_readers} of each |",
        f"| executors in a fleet | {fleet.MAX_MEMBERS} |",
        f"| {EXIT_USAGE} | all | cannot start as configured",
        f"| {EXIT_CRASHED} | executor | crashed",
        f"| {EXIT_CRASHED} | scheduler | crashed",
        f"| {EXIT_TRY_AGAIN} | all | cannot start now",
        f"another protocol version, after a pause of {registration.PAUSE_S:.0f} s",
        f"| {EXIT_REJECTED} | executor | the scheduler rejected it",
        f"after {addresses.ADDRESS_TIMEOUT_S:.0f} s the scheduler ends with {EXIT_TRY_AGAIN} |",
        f"two are ready, itself among them, for {MAX_WAIT_S} s at most",
        f"an executor goes after {PATIENCE_S} s",
        f"| connections to a frontend | {OPTIONS.max_connections:,} |",
        f"| open requests of a frontend | {core_link.MAX_OPEN_REQUESTS:,} |",
        f"line and headers | {connection_guard.MAX_HEAD_BYTES // 2**10} KiB, {strict_h11.MAX_HEAD_LINES} lines |",
        f"| time to send them | {LIMITS.head_timeout_s:.0f} s |",
        f"| time to send the body | {LIMITS.body_timeout_s:.0f} s |",
        f"| a reader that takes no byte | {LIMITS.stall_timeout_s:.0f} s |",
        f"| a message from an executor | {core_process.MAX_EXECUTOR_MESSAGE_BYTES / 1e6:.1f} MB |",
        f"for {probation.FIRST_BREAK_S:.0f} s, then 2 s, up to {probation.LONGEST_BREAK_S:.0f} s |",
    ],
)
def test_numbers_are_those_of_the_code(fact):
    assert fact in " ".join(GUIDE.split())


def test_numbers_that_are_written_as_words():
    assert recovery.RESUME_WITHIN_S == 10 * 60
    assert registration.STUCK_TIMEOUT_S == 2 * 60
    assert max(api_keys.RELOAD_INTERVAL_S, curve_auth.RELOAD_INTERVAL_S) < 2
    assert "ten minutes" in GUIDE
    assert "two minutes" in GUIDE
    assert "within two seconds" in GUIDE


def test_the_kustomization_names_what_is_there():
    (text,) = re.findall(r"^```yaml\n(# kustomization.*?)```", GUIDE, flags=re.MULTILINE | re.DOTALL)
    recipe = yaml.safe_load(text)
    (folder,) = recipe["resources"]
    assert (ROOT / folder / "kustomization.yaml").exists()
    for image in recipe["images"]:
        assert f"FROM service AS {image['name'].removeprefix('baton-')}" in (ROOT / "Dockerfile").read_text()
