"""docs/compatibility.md, as a run of all clients writes it."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.clients.install import BENCHMARKS
from tests.clients.matrix import CLIENTS, FEATURES, INSTALLED, ROOT, Told

PAGE = ROOT / "docs" / "compatibility.md"
_INTRODUCTION = """# Compatibility

`make test-clients` runs published packages, unchanged, against a scheduler and two executors, and writes this page.
The model is a stand-in with Qwen's tokenizer and chat template that recites given answers, thoughts and tool calls
included (`tests/support/reciter/`). "yes" was measured, "-" does not apply, and what does not work says why.

- **tool calls**: the model calls by itself (`tool_choice` auto), one function or two at once.
- **tools' results**: they go back, and an answer in words comes.
- **`tool_choice`**: a call where the model would have said something: of any function, and of a named one.
- **JSON by schema**: `response_format` with a JSON schema, by the client's own way (`parse`, output types, ...).
- **thoughts**: they come apart from the answer, as `reasoning_content`, or as blocks (anthropic, on Messages).
- **`kill -9` in a call**: the executor is killed in the middle of a streamed tool call, which arrives whole and once.
  instructor and llm show a call late or whole: there it is killed when half of the call's tokens are generated.

"""


@dataclass
class Found:
    """What a run has found.

    Attributes:
        cells: by client and feature.
        num_fuzzed: requests that were generated and answered as the document says.
    """

    cells: dict[str, dict[str, Told]] = field(default_factory=dict)
    num_fuzzed: int = 0


def page(found: Found, versions: Mapping[str, str]) -> str:
    """The page's text."""
    lines = [_row(["client", "version", *FEATURES.values()]), _row(["---"] * (len(FEATURES) + 2))]
    notes = []
    for name, told in found.cells.items():
        lines.append(_row([name, versions[name], *(_cell(told[feature]) for feature in FEATURES)]))
        reasons: dict[str, list[str]] = {}
        for feature, title in FEATURES.items():
            if told[feature].why:
                reasons.setdefault(told[feature].why, []).append(title)
        notes += [f"- {name}: {', '.join(titles)}: {why}" for why, titles in reasons.items()]
    text = _INTRODUCTION + "\n".join(lines) + "\n\nWhat does not apply, or does not work:\n\n" + "\n".join(notes) + "\n"
    text += (
        f"\nschemathesis {versions['schemathesis']} made {found.num_fuzzed} requests from the document at "
        "`/openapi.json`; all answers were as the document says, and none was a server's error.\n"
    )
    return text + f"\nMeasured on {datetime.now(UTC):%Y-%m-%d}.\n"


def versions() -> dict[str, str]:
    """Of each client, and of schemathesis."""
    benchmarks = dict(package.split("==") for package in BENCHMARKS)
    listed = subprocess.run(
        [INSTALLED / "bin" / "python", "-m", "pip", "list", "--format", "json"], capture_output=True, check=True
    ).stdout
    python = {entry["name"].lower(): entry["version"] for entry in json.loads(listed)}
    node = json.loads((INSTALLED / "node" / "package.json").read_text())["dependencies"]
    found = {"schemathesis": python["schemathesis"]}
    for client in CLIENTS.values():
        known = node if client.script.endswith(".js") else python | benchmarks
        found[client.name] = known[client.package]
    return found


def _cell(told: Told) -> str:
    return {True: "yes", False: "no", None: "-"}[told.ok]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
