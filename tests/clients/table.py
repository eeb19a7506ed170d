"""docs/compatibility.md, as a run of all clients writes it."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.clients.install import BENCHMARKS
from tests.clients.matrix import INSTALLED, ROOT, TABLES, Client, Table, Told

PAGE = ROOT / "docs" / "compatibility.md"
_INTRODUCTION = """# Compatibility

`make test-clients` runs published packages, unchanged, against a scheduler, two executors that generate, one that
embeds and one that scores, and writes this page. What generates is a stand-in with Qwen's tokenizer and chat template
that recites given answers, thoughts and tool calls included (`tests/support/reciter/`). "yes" was measured, "-" does
not apply, and what does not work says why.

- **tool calls**: the model calls by itself (`tool_choice` auto), one function or two at once.
- **tools' results**: they go back, and an answer in words comes.
- **`tool_choice`**: a call where the model would have said something: of any function, and of a named one.
- **JSON by schema**: `response_format` with a JSON schema, by the client's own way (`parse`, output types, ...).
- **thoughts**: they come apart from the answer, as `reasoning_content`, as blocks (anthropic, on Messages), or as items
  (on Responses, also as summaries).
- **`kill -9` in a call**: the executor is killed in the middle of a streamed tool call, which arrives whole and once.
  instructor and llm show a call late or whole: there it is killed when half of the call's tokens are generated.

Clients ask chat completions where nothing else is said.

"""


@dataclass
class Found:
    """What a run has found.

    Attributes:
        cells: by table, client and feature.
        num_fuzzed: requests that were generated and answered as the document says.
    """

    cells: dict[tuple[str, str], dict[str, Told]] = field(default_factory=dict)
    num_fuzzed: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether all clients of all tables were run."""
        wanted = {(table.title, client.name) for table in TABLES for client in table.clients}
        return self.cells.keys() == wanted and self.num_fuzzed > 0


def page(found: Found, versions: Mapping[tuple[str, str], str], schemathesis: str) -> str:
    """The page's text.

    Args:
        versions: by table and client.
    """
    text = _INTRODUCTION + "\n".join(_section(table, found, versions) for table in TABLES)
    text += (
        f"\nschemathesis {schemathesis} made {found.num_fuzzed} requests from the document at "
        "`/openapi.json`; all answers were as the document says, and none was a server's error.\n"
    )
    return text + f"\nMeasured on {datetime.now(UTC):%Y-%m-%d}.\n"


def _section(table: Table, found: Found, versions: Mapping[tuple[str, str], str]) -> str:
    lines = [f"## {table.title}", "", *table.words, ""] if table.title else []
    lines += [_row(["client", "version", *table.features.values()]), _row(["---"] * (len(table.features) + 2))]
    notes = []
    for client in table.clients:
        key = table.title, client.name
        told = found.cells[key]
        lines.append(_row([client.name, versions[key], *(_cell(told[feature]) for feature in table.features)]))
        reasons: dict[str, list[str]] = {}
        for feature, title in table.features.items():
            if told[feature].why:
                reasons.setdefault(told[feature].why, []).append(title)
        notes += [f"- {client.name}: {', '.join(titles)}: {why}" for why, titles in reasons.items()]
    if notes:
        lines += ["", "What does not apply, or does not work:", "", *notes]
    return "\n".join(lines) + "\n"


def installed_version(package: str) -> str:
    """Of a Python package of the clients' environment."""
    return _python_versions()[package]


def versions() -> dict[tuple[str, str], str]:
    """Of each client, by its table and name."""
    python = _python_versions() | dict(package.split("==") for package in BENCHMARKS)
    node = json.loads((INSTALLED / "node" / "package.json").read_text())["dependencies"]

    def version(client: Client) -> str:
        is_of_node = client.script.endswith(".js") or client.package.startswith("@")
        return str((node if is_of_node else python)[client.package])

    return {(table.title, client.name): version(client) for table in TABLES for client in table.clients}


def _python_versions() -> dict[str, str]:
    listed = subprocess.run(
        [INSTALLED / "bin" / "python", "-m", "pip", "list", "--format", "json"], capture_output=True, check=True
    ).stdout
    return {entry["name"].lower(): entry["version"] for entry in json.loads(listed)}


def _cell(told: Told) -> str:
    return {True: "yes", False: "no", None: "-"}[told.ok]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
