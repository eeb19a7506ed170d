"""Clients and features, and how a client's script is run against a service."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from scheduler_svc.client.processes.local_fleet import LocalFleet
from tests.support.eventually import eventually
from tests.support.reciter.checkpoint import reciter_folder

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
INSTALLED = ROOT / "build" / "clients"
MODEL = "reciter"
SERVED = ("--served-model-name", MODEL, "--openapi")
"""The scheduler's options."""
TIMEOUT_S = 60
FEATURES = {
    "plain": "answer",
    "stream": "stream",
    "usage": "usage in it",
    "tools": "tool calls",
    "tools_stream": "calls streamed",
    "loop": "tools' results",
    "required": "`tool_choice`",
    "schema": "JSON by schema",
    "json": "any JSON",
    "thinking": "thoughts",
    "logprobs": "logprobs",
    "killed": "`kill -9` in a call",
}


@dataclass(frozen=True)
class Client:
    """A published package.

    Attributes:
        name: in the table.
        package: whose version is told.
        script: in `scripts` (.py) or in `node` (.js).
        env: further variables of its environment.
    """

    name: str
    package: str
    script: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        """What starts its script."""
        if self.script.endswith(".js"):
            return ["node", str(INSTALLED / "node" / self.script)]
        return [str(INSTALLED / "bin" / "python"), str(HERE / "scripts" / self.script)]


QUICK = ("tools", "loop", "schema", "thinking", "killed")
"""Features that `make test` tries."""
OPENAI_HERE = [sys.executable, str(HERE / "scripts" / "openai_python.py")]
ANTHROPIC_HERE = [sys.executable, str(HERE / "scripts" / "anthropic_python.py")]
"""The scripts of the packages `openai` and `anthropic`, with those that are among our own packages."""
CLIENTS = {
    client.name: client
    for client in (
        Client("openai (Python)", "openai", "openai_python.py"),
        Client("openai (Node)", "openai", "openai_node.js"),
        Client("anthropic (Python)", "anthropic", "anthropic_python.py"),
        Client("LiteLLM", "litellm", "litellm_python.py"),
        Client("LangChain", "langchain-openai", "langchain_python.py"),
        Client("LlamaIndex", "llama-index-llms-openai-like", "llama_index_python.py"),
        Client("instructor", "instructor", "instructor_python.py"),
        Client("pydantic-ai", "pydantic-ai-slim", "pydantic_ai_python.py"),
        Client("OpenAI Agents SDK", "openai-agents", "openai_agents_python.py"),
        Client("smolagents", "smolagents", "smolagents_python.py"),
        Client("llm", "llm", "llm_python.py"),
        Client("Vercel AI SDK", "ai", "vercel_ai.js"),
        Client("lm-evaluation-harness", "lm_eval", "lm_eval_python.py"),
        Client("guidellm", "guidellm", "guidellm_python.py", {"PYTHONPATH": f"{ROOT}:{INSTALLED / 'lent'}"}),
        Client("vllm bench serve", "vllm", "sse_benchmarks.py", {"CLIENT": "vllm"}),
        Client("sglang bench_serving", "sglang", "sse_benchmarks.py", {"CLIENT": "sglang"}),
    )
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


def run_script(
    fleet: LocalFleet, command: list[str], env: Mapping[str, str], features: Sequence[str] = ()
) -> dict[str, Told]:
    """Run a client's script against the service, and kill executors when it asks for that.

    Args:
        command: starts the script.
        env: further variables of its environment.
        features: which to try; all if none are named.
    """
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "RECITER": str(reciter_folder()),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "1",
        **env,
    }
    arguments = [f"{fleet.spec.url}/v1", MODEL, *features]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, *arguments], stdin=pipe, stdout=pipe, text=True, env=env, cwd=ROOT) as process:
        try:
            return dict(_answers(fleet, process))
        finally:
            process.kill()


def _answers(fleet: LocalFleet, process: subprocess.Popen) -> Iterator[tuple[str, Told]]:
    assert process.stdout is not None
    assert process.stdin is not None
    for line in process.stdout:
        if not line.startswith('{"'):
            print(line, end="")
            continue
        told = json.loads(line)
        if "kill" in told:
            process.stdin.write("killed\n" if replace_busy_executor(fleet, told["kill"]) else "none was busy\n")
            process.stdin.flush()
        else:
            yield told["feature"], Told(told["ok"], told["told"])
    assert process.wait(TIMEOUT_S) == 0, "the script failed"


def replace_busy_executor(fleet: LocalFleet, num_tokens: int) -> bool:
    """SIGKILL the executor that has running sequences, and start it again. False if there is none for seconds.

    Args:
        num_tokens: that are generated first.
    """

    def status() -> dict[str, Any]:
        return httpx.get(f"{fleet.spec.url}/status").json()

    start = status()["output_tokens"]

    def busy() -> str | None:
        now = status()
        running = (executor["executor"] for executor in now["executors"] if executor["running"])
        return next(running, None) if now["output_tokens"] >= start + num_tokens else None

    try:
        index = int(eventually(busy, 10).rpartition("-")[2])
    except AssertionError:
        return False
    fleet.kill_executor(index)
    fleet.start_executor(index)
    return True
