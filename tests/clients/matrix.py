"""Clients and features, and how a client's script is run against a service."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from scheduler_svc.client.processes.local_fleet import LocalFleet
from tests.support.eventually import eventually

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
MODEL = "reciter"
TIMEOUT_S = 240
FEATURES = {
    "plain": "chat",
    "stream": "streamed",
    "usage": "usage in streams",
    "tools": "tool calls",
    "tools_stream": "calls streamed",
    "loop": "results of tools",
    "required": "`tool_choice`",
    "schema": "JSON by schema",
    "json": "`json_object`",
    "thinking": "thinking apart",
    "logprobs": "log-probabilities",
    "killed": "`kill -9` in a call",
}


@dataclass(frozen=True)
class Told:
    """What a script says of a feature.

    Attributes:
        ok: None where it does not apply.
        why: what went wrong, or why it does not apply.
    """

    ok: bool | None
    why: str


def run_script(fleet: LocalFleet, command: list[str], features: tuple[str, ...] = ()) -> dict[str, Told]:
    """Run a client's script against the service, and kill executors when it asks for that.

    Args:
        command: starts the script, without its arguments.
        features: which to try; all if there are none.
    """
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "1",
    }
    pipe = subprocess.PIPE
    arguments = [f"{fleet.spec.url}/v1", MODEL, *features]
    with subprocess.Popen([*command, *arguments], stdin=pipe, stdout=pipe, text=True, env=env, cwd=ROOT) as process:
        try:
            return dict(_answers(fleet, process))
        finally:
            process.kill()


def _answers(fleet: LocalFleet, process: subprocess.Popen) -> Iterator[tuple[str, Told]]:
    assert process.stdout is not None
    assert process.stdin is not None
    for line in process.stdout:
        if not line.startswith("{"):
            print(line, end="")
            continue
        told = json.loads(line)
        if told.get("kill"):
            replace_busy_executor(fleet)
            process.stdin.write("\n")
            process.stdin.flush()
        else:
            yield told["feature"], Told(told["ok"], told["told"])
    assert process.wait(TIMEOUT_S) == 0, "the script failed"


def replace_busy_executor(fleet: LocalFleet) -> None:
    """SIGKILL the executor that has running sequences, and start it again."""

    def busy() -> str | None:
        executors = httpx.get(f"{fleet.spec.url}/status").json()["executors"]
        return next((executor["executor"] for executor in executors if executor["running"]), None)

    index = int(eventually(busy, 20).rpartition("-")[2])
    fleet.kill_executor(index)
    fleet.start_executor(index)
