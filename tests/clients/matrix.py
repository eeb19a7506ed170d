"""Clients and features, and how a client's script is run against a service."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from scheduler_svc.client.processes.local_fleet import LocalFleet
from tests import ROOT
from tests.support.eventually import eventually
from tests.support.reciter.checkpoint import reciter_folder

HERE = Path(__file__).parent
INSTALLED = ROOT / "build" / "clients"
MODEL = "reciter"
OPENAI_NAME = "gpt-5.5"
"""A second name of the model: Codex knows it, and offers more kinds of tools to it."""
SERVED = ("--served-model-name", MODEL, "--served-model-name", OPENAI_NAME, "--openapi")
"""The scheduler's options."""
TIMEOUT_S = 60


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


@dataclass(frozen=True)
class Table:
    """Clients that are asked for the same.

    Attributes:
        title: its heading on the page; none if it is empty.
        features: what the columns are called, by their names in the scripts.
        clients: the rows.
        words: lines that say what the columns are.
    """

    title: str
    features: Mapping[str, str]
    clients: tuple[Client, ...]
    words: tuple[str, ...] = ()


QUICK = ("tools", "loop", "schema", "thinking", "killed")
"""Features that `make test` tries."""
_RESPONSES = {"API": "responses"}
_ANSWERS = Table(
    "",
    {
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
    },
    (
        Client("openai (Python)", "openai", "openai_python.py"),
        Client("openai (Python), Responses", "openai", "openai_responses_python.py"),
        Client("openai (Node)", "openai", "openai_node.js"),
        Client("openai (Node), Responses", "openai", "openai_responses_node.js"),
        Client("anthropic (Python)", "anthropic", "anthropic_python.py"),
        Client("LiteLLM", "litellm", "litellm_python.py"),
        Client("LangChain", "langchain-openai", "langchain_python.py"),
        Client("LangChain, Responses", "langchain-openai", "langchain_python.py", _RESPONSES),
        Client("LlamaIndex", "llama-index-llms-openai-like", "llama_index_python.py"),
        Client("instructor", "instructor", "instructor_python.py"),
        Client("pydantic-ai", "pydantic-ai-slim", "pydantic_ai_python.py"),
        Client("pydantic-ai, Responses", "pydantic-ai-slim", "pydantic_ai_python.py", _RESPONSES),
        Client("OpenAI Agents SDK", "openai-agents", "openai_agents_python.py"),
        Client("OpenAI Agents SDK, Responses", "openai-agents", "openai_agents_python.py", _RESPONSES),
        Client("smolagents", "smolagents", "smolagents_python.py"),
        Client("llm", "llm", "llm_python.py"),
        Client("Vercel AI SDK", "ai", "vercel_ai.js"),
        Client("Vercel AI SDK, @ai-sdk/openai", "@ai-sdk/openai", "vercel_ai.js", _RESPONSES),
        Client("lm-evaluation-harness", "lm_eval", "lm_eval_python.py"),
        Client("guidellm", "guidellm", "guidellm_python.py", {"PYTHONPATH": f"{ROOT}:{INSTALLED / 'lent'}"}),
        Client("vllm bench serve", "vllm", "sse_benchmarks.py", {"CLIENT": "vllm"}),
        Client("sglang bench_serving", "sglang", "sse_benchmarks.py", {"CLIENT": "sglang"}),
    ),
)
_CONVERSATIONS = Table(
    "Responses that are kept",
    {
        "goes_on": "`previous_response_id`",
        "own_items": "items sent back",
        "references": "items by reference",
        "input_items": "`input_items`",
        "background": "background",
        "resumed": "its stream resumed",
        "cancel": "cancel",
        "delete": "delete",
    },
    (
        Client("openai (Python)", "openai", "openai_kept_python.py"),
        Client("openai (Node)", "openai", "openai_kept_node.js"),
        Client("LangChain", "langchain-openai", "langchain_python.py", _RESPONSES),
        Client("pydantic-ai", "pydantic-ai-slim", "pydantic_ai_python.py", _RESPONSES),
        Client("OpenAI Agents SDK", "openai-agents", "openai_agents_python.py", _RESPONSES),
        Client("Vercel AI SDK, @ai-sdk/openai", "@ai-sdk/openai", "vercel_ai.js", _RESPONSES),
    ),
    (
        "- **`previous_response_id`**: a tool's result, and a question after it, go with the id of what they follow.",
        '- **items sent back**: with `"store": false` the client keeps the conversation; its thoughts are in',
        "  `encrypted_content`, where it asks for that.",
        "- **items by reference**: ids of stored items in place of items.",
        "- **background**: the answer is asked for until it is there; openai's clients, while the executor dies.",
        "- **its stream resumed**: the connection breaks in a call, and the executor is killed while the rest is read:",
        "  no event is lost or doubled, and the whole stream can be read again.",
    ),
)
_POOLED = Table(
    "Embeddings and reranking",
    {
        "vector": "a vector",
        "several": "several texts",
        "encodings": "float and base64",
        "dimensions": "`dimensions`",
        "token_ids": "token ids",
        "ranking": "a ranking",
        "top_n": "its best",
    },
    (
        Client("openai (Python)", "openai", "openai_pooled_python.py"),
        Client("openai (Node)", "openai", "openai_pooled_node.js"),
        Client("LiteLLM", "litellm", "pooled_python.py", {"CLIENT": "litellm"}),
        Client("LangChain", "langchain-openai", "pooled_python.py", {"CLIENT": "langchain"}),
        Client("LlamaIndex", "llama-index-embeddings-openai-like", "pooled_python.py", {"CLIENT": "llama_index"}),
        Client("Vercel AI SDK, @ai-sdk/openai", "@ai-sdk/openai", "vercel_pooled.js"),
        Client("cohere, Client", "cohere", "ranking_python.py", {"CLIENT": "cohere"}),
        Client("cohere, ClientV2", "cohere", "ranking_python.py", {"CLIENT": "cohere_v2"}),
        Client(
            "LlamaIndex, JinaRerank", "llama-index-postprocessor-jinaai-rerank", "ranking_python.py", {"CLIENT": "jina"}
        ),
    ),
    (
        "Each client's vectors and scores are compared with what the server writes to plain requests, one text at a",
        "time; the numbers themselves are compared with transformers' in `tests/e2e/test_embeddings.py`.",
        "",
        "- **float and base64**: both encodings of vectors give the same.",
        "- **token ids**: in place of texts.",
        "- **its best**: `top_n`.",
    ),
)
_BATCHES = Table(
    "Files and batches",
    {
        "files": "files",
        "batch": "a batch of chats",
        "bad_lines": "a bad line",
        "embeddings": "of embeddings",
        "completions": "of completions",
        "listed": "lists",
        "cancel": "cancel",
        "killed": "`kill -9` in it",
    },
    (
        Client("openai (Python)", "openai", "openai_batches_python.py"),
        Client("openai (Node)", "openai", "openai_batches_node.js"),
    ),
    ("- **`kill -9` in it**: the executor is killed while it computes the lines; each is answered, once.",),
)
_AGENTS = Table(
    "Coding agents",
    {
        "plain": "answer",
        "usage": "usage",
        "thinking": "thoughts",
        "command": "a command",
        "patch": "a patch",
        "namespace": "a namespace",
        "schema": "JSON by schema",
        "resumed": "a session resumed",
        "old_image": "an old image",
        "killed": "`kill -9` in a patch",
    },
    (Client("Codex CLI", "@openai/codex", "codex_cli.py", {"OPENAI_NAME": OPENAI_NAME}),),
    (
        "Codex is run as it is (`codex exec`), with the service as its provider, and its tools run for real. It asks",
        "Responses, with `store: false`.",
        "",
        "- **a command**: the model calls `exec_command`, the command runs, and the result goes back.",
        "- **a patch**: by `apply_patch`, a custom tool with a grammar in Lark.",
        "- **a namespace**: a function of `multi_agent_v1` is called, and found by its namespace.",
        "- **a session resumed**: all its items go back, with the thoughts' `encrypted_content`.",
        "- **an old image**: it is refused when it is new, and does not end its session.",
        "",
        "The hosted tools that Codex offers (`web_search`, `tool_search`) are left out of every one of these requests.",
    ),
)
TABLES = (_ANSWERS, _CONVERSATIONS, _POOLED, _BATCHES, _AGENTS)


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
        "CODEX": str(INSTALLED / "node" / "node_modules" / ".bin" / "codex"),
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
