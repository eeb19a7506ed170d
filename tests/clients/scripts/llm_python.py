"""The command `llm`, and its Python API where a call has to be seen."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from report import (
    ADA,
    FERRY,
    HARBOR,
    ISLANDS,
    LANTERN,
    LEDGER,
    WHALE,
    DoesNotApply,
    equal,
    model,
    report,
    said_in,
    url,
    while_killing,
)

FOLDER = Path(tempfile.mkdtemp(prefix="llm-"))
FUNCTIONS = """
def get_weather(city: str) -> str:
    "Tell the weather."
    return "18" if city == "Oslo" else "14"

def write_file(path: str, content: str) -> str:
    "Write a text file."
    return f"{len(content)} characters"
"""
SETTINGS = f"""
- model_id: {model()}
  model_name: {model()}
  api_base: {url()}
  supports_tools: true
  supports_schema: true
  can_stream: true
"""
(FOLDER / "extra-openai-models.yaml").write_text(SETTINGS)


def llm(answer, *options):
    """What the command writes."""
    command = [Path(sys.executable).parent / "llm", "-m", model(), "--key", "none", "-o", "max_tokens", "600", *options]
    env = os.environ | {"LLM_USER_PATH": str(FOLDER)}
    pipes = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    done = subprocess.run([*command, answer.prompt], check=False, env=env, **pipes)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.strip(), done.stderr


def plain():
    equal(llm(HARBOR, "--no-stream")[0], HARBOR.plain)


def stream():
    equal(llm(HARBOR)[0], HARBOR.plain)


def usage():
    _, streamed = llm(WHALE, "--usage")
    _, whole = llm(WHALE, "--usage", "--no-stream")
    counts = [text.partition("Token usage:")[2].split(" output")[0] for text in (streamed, whole)]
    equal(counts[0], counts[1])
    equal("input" in counts[0], True)


def tools():
    said, debug = llm(ISLANDS, "--functions", FUNCTIONS, "--tools-debug", "--no-stream")
    equal(said.endswith(ISLANDS.result), True)
    equal([city in debug for city in ("Oslo", "Bergen")], [True, True])


def loop():
    said, _ = llm(LANTERN, "--functions", FUNCTIONS)
    equal(said.endswith(said_in(LANTERN.result)), True)


def streamed():
    said, debug = llm(LEDGER, "--functions", FUNCTIONS, "--tools-debug")
    equal((said.endswith(LEDGER.result), "characters" in debug), (True, True))


def killed():
    """The command tells nothing of a call before it is whole: its tokens are counted."""
    while_killing(streamed)


def schema():
    equal(json.loads(llm(FERRY, "--schema", "name, age int")[0]), ADA)


def json_object():
    equal(json.loads(llm(FERRY, "-o", "json_object", "1")[0]), ADA)


def thinking():
    equal(llm(WHALE)[0], said_in(WHALE.plain))
    raise DoesNotApply("the answer is apart; the thought is not shown")


def not_there():
    raise DoesNotApply("has no such option for chats")


report(
    plain,
    stream,
    usage,
    tools,
    loop,
    schema,
    thinking,
    killed,
    tools_stream=streamed,
    required=not_there,
    json=json_object,
    logprobs=not_there,
)
