"""docs/operations.md is true of the code, where that can be checked."""

import re
from pathlib import Path

import click
import pytest
import yaml

from common.wire import LOSS_TIMEOUT_S
from executor_svc import link
from executor_svc.__main__ import main as baton_executor
from scheduler_svc import auth, front_desk, requests, step_clock
from scheduler_svc.__main__ import main as baton_scheduler
from scheduler_svc.client.cli import COMMANDS, LazyGroup
from scheduler_svc.frontend import api, api_keys, inbox
from tests.deploy import commands
from tests.deploy.manifests import ROOT
from tests.deploy.test_probes import DRAIN

GUIDE = (ROOT / "docs" / "operations.md").read_text()
FOREIGN = {  # options of docker, kubectl, pip and systemctl
    *("--build", "--detach", "--wait", "--scale", "--replicas", "--grace-period", "--from-file", "--dry-run"),
}


def all_options():
    group = LazyGroup("baton")
    ours = [baton_scheduler, baton_executor, *(group.get_command(click.Context(group), name) for name in COMMANDS)]
    ours += [sub for command in ours if isinstance(command, click.Group) for sub in command.commands.values()]
    return {
        name
        for command in ours
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def test_options_are_there():
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", GUIDE))
    assert named
    assert named <= all_options() | FOREIGN


def test_services_would_start_like_that():
    text = GUIDE.replace("\\\n", " ")
    lines = re.findall(r"^(?:ExecStart=/opt/baton/bin/)(baton-.*)$", text, flags=re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        assert commands.complaints(line.replace("SCHEDULER", "scheduler").split()) == []


def test_commands_are_there():
    named = set(re.findall(r"(?:^|`)baton ([a-z]+)", GUIDE, flags=re.MULTILINE))
    assert named
    assert named <= COMMANDS.keys()


def test_log_lines_are_there():
    sources = "".join(
        path.read_text() for name in ("scheduler_svc", "executor_svc", "common") for path in (ROOT / name).rglob("*.py")
    )
    table = GUIDE[GUIDE.index("## Log lines") : GUIDE.index("## Limits")]
    events = {
        event
        for row in re.findall(r"^\| \w+ \| (`.*?) \|", table, flags=re.MULTILINE)
        for event in re.findall(r"`(.*?)`", row)
    }
    assert len(events) > 20
    for event in events:
        assert f'"{event}"' in sources, event


@pytest.mark.parametrize(
    "fact",
    [
        f"after {LOSS_TIMEOUT_S} s if there was no time",
        f"at least `--step-timeout` ({step_clock.DEFAULT_FLOOR_S:.0f} s)",
        f"{step_clock.FIRST_STEP_LIMIT_S:.0f} s for its very first steps",
        f"after {step_clock.PATIENCE:.0f} times its longest comparable step",
        f"none lost for {front_desk.RECONNECT_GRACE_S:.0f} s (`--reconnect-grace`)",
        f"| {requests.RETAIN_S / 60:.0f} minutes, {requests.MAX_RETAINED:,} requests, ",
        f", {requests.MAX_RETAINED_TOKENS // 2**20} Mi tokens |",
        f"| {inbox.MAX_WAITING_TOKENS:,} | | `reader_too_slow` |",
        f"| {api.MAX_BODY_BYTES // 2**20} MiB | | 413 |",
        f"| {link.EXIT_CRASHED} | executor | crashed",
        f"| {link.EXIT_REJECTED} | executor | the scheduler rejected it",
        f"another executor is ready, for {DRAIN[-1]} s at most",
    ],
)
def test_numbers_are_those_of_the_code(fact):
    assert fact in GUIDE


def test_numbers_that_are_written_as_words():
    assert front_desk.RESUME_WITHIN_S == 10 * 60
    assert link.STUCK_TIMEOUT_S == 2 * 60
    assert max(api_keys.RELOAD_INTERVAL_S, auth.RELOAD_INTERVAL_S) < 2
    assert "ten minutes" in GUIDE
    assert "two minutes" in GUIDE
    assert "within two seconds" in GUIDE


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((.*?)\)", GUIDE):
        name, _, anchor = target.partition("#")
        path = (ROOT / "docs" / name).resolve() if name else ROOT / "docs" / "operations.md"
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), target


def anchors(path: Path):
    """What headings are called in links, as GitHub makes it of them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_kustomization_names_what_is_there():
    (text,) = re.findall(r"^```yaml\n(# kustomization.*?)```", GUIDE, flags=re.MULTILINE | re.DOTALL)
    recipe = yaml.safe_load(text)
    (folder,) = recipe["resources"]
    assert (ROOT / folder / "kustomization.yaml").exists()
    for image in recipe["images"]:
        assert f"FROM service AS {image['name'].removeprefix('baton-')}" in (ROOT / "Dockerfile").read_text()
