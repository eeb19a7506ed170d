"""The command `codex exec` of the npm package @openai/codex, which asks Responses for all that it does.

It sends what Codex sends of itself: functions, a namespace of them, hosted tools and, to a model that it knows by its
name, `apply_patch` as a custom tool with a grammar. Its tools run for real, in a folder of their own.
"""

import json
import os
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path

from report import (
    ADA,
    BEACON,
    CAPTAIN,
    CARGO,
    HARBOR,
    PERSON_SCHEMA,
    SAILOR,
    equal,
    model,
    report,
    thought_of,
    url,
    while_killing,
)

from tests.support.reciter.answers import MINUTES

OPENAI_NAME = os.environ["OPENAI_NAME"]
"""Of the model, by which Codex takes it for one that is given `apply_patch` as a custom tool."""
INSIDE_THE_PATCH = 60
"""Tokens of `CARGO`'s answer: its patch is half written then."""
CODEX = Path(os.environ["CODEX"])
HOME = Path(tempfile.mkdtemp(prefix="codex-home-"))
SETTINGS = f"""
model_provider = "baton"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.baton]
name = "baton"
base_url = "{url()}"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""
(HOME / "config.toml").write_text(SETTINGS)


class Run:
    """One run of the command in a folder of its own, or in that of an earlier run.

    Args:
        answer: whose prompt is sent.
        options: of the command.

    Attributes:
        events: that it wrote.
    """

    def __init__(self, answer, *options, name=None, folder=None, resumes=False):
        self.folder = folder or Path(tempfile.mkdtemp(prefix="codex-"))
        where = ["exec", "resume", "--last"] if resumes else ["exec", "--sandbox", "danger-full-access"]
        asked = ["--model", name or model(), answer.prompt, *options]
        command = [CODEX, *where, "--json", "--skip-git-repo-check", *asked]
        env = os.environ | {"CODEX_HOME": str(HOME), "HOME": str(HOME)}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        done = subprocess.run(command, check=False, cwd=self.folder, env=env, **pipes)
        self.events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]

    def items(self, kind):
        """What it came to, of one kind."""
        ended = [event["item"] for event in self.events if event["type"] == "item.completed"]
        return [item for item in ended if item["type"] == kind]

    @property
    def said(self):
        """The texts of its messages. Raises RuntimeError if the run failed."""
        for event in self.events:
            if event["type"] == "turn.failed":
                raise RuntimeError(event["error"]["message"])
        return [item["text"] for item in self.items("agent_message")]

    @property
    def usage(self):
        """Of all its requests."""
        return next(event["usage"] for event in self.events if event["type"] == "turn.completed")


def plain():
    """An answer, which is streamed; the hosted tools that it is offered are left out."""
    equal(Run(HARBOR).said, [HARBOR.plain])


def usage():
    """Counts of two requests, the second of which finds the first in the prefix cache."""
    used = Run(BEACON).usage
    equal(used["cached_input_tokens"] > used["input_tokens"] / 3, True)
    equal((used["output_tokens"] > 20, used["reasoning_output_tokens"] > 5), (True, True))


def thinking():
    """The thought, by its summary."""
    equal([item["text"] for item in Run(BEACON).items("reasoning")], [thought_of(BEACON.tools)])


def command():
    """A command that the model calls runs, and its result goes back."""
    run = Run(BEACON)
    equal((run.said, (run.folder / "keeper.txt").read_text()), ([BEACON.result], "Ada\n"))
    equal([item["exit_code"] for item in run.items("command_execution")], [0])


def patch():
    """A patch by the custom tool, whose grammar holds."""
    run = Run(CARGO, name=OPENAI_NAME)
    equal((run.said, (run.folder / "list.txt").read_text()), ([CARGO.result], MINUTES + "\n"))


def namespace():
    """A function of a namespace is found, and its error comes back."""
    equal(Run(SAILOR).said, [SAILOR.result])


def schema():
    """`--output-schema`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(PERSON_SCHEMA, file)
        file.flush()
        [said] = Run(CAPTAIN, "--output-schema", file.name).said
    equal(json.loads(said), ADA)


def resumed():
    """A session that is gone on from: Codex keeps it, thoughts included, and sends all of it again."""
    first = Run(BEACON)
    equal(first.said, [BEACON.result])
    equal(Run(HARBOR, folder=first.folder, resumes=True).said, [HARBOR.plain])


def old_image():
    """An image is refused, and its session goes on: from then on it stands in an old turn."""
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        file.write(png())
        file.flush()
        first = Run(HARBOR, "--image", file.name)
    try:
        said = first.said
    except RuntimeError as error:
        equal("input_image" in str(error), True)
    else:
        raise AssertionError(f"the image was taken: {said}")
    equal(Run(HARBOR, folder=first.folder, resumes=True).said, [HARBOR.plain])


def killed():
    """The executor dies while it writes a patch."""
    while_killing(patch, INSIDE_THE_PATCH)


def png():
    """A picture of one pixel."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0\xff\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


report(plain, usage, thinking, command, patch, namespace, schema, resumed, old_image, killed)
