"""Published packages, unchanged, against real services; what works becomes docs/compatibility.md.

`make test-clients` installs them and runs this.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.matrix import INSTALLED, SERVED, TABLES, Client, Table, Told, run_script
from tests.clients.table import PAGE, Found, installed_version, page, versions
from tests.support.fleets import running_fleet
from tests.support.reciter.checkpoint import reciter_folder

NODE_SCRIPTS = Path(__file__).parent / "node"
needs_packages = pytest.mark.clients


def case(table: Table, client: Client, feature: str):
    """A cell of the page."""
    return pytest.param(table, client, feature, id=f"{table.title or 'Answers'}-{client.name}-{feature}")


CASES = [case(table, client, feature) for table in TABLES for client in table.clients for feature in table.features]


@pytest.fixture(scope="module")
def found(fleet) -> Iterator[Found]:
    """What is known of each client; the page is written when all is."""
    for script in NODE_SCRIPTS.glob("*.js"):
        shutil.copy(script, INSTALLED / "node")  # next to the packages: they are looked for from there
    found = Found()
    yield found
    if found.is_whole and "BATON_COMPATIBILITY" in os.environ:
        text = page(found, versions(), installed_version("schemathesis"))
        Path(os.environ["BATON_COMPATIBILITY"]).write_text(text)


@needs_packages
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("table", "client", "feature"), CASES)
def test_client(whole_fleet, found, table, client, feature):
    key = table.title, client.name
    if key not in found.cells:
        found.cells[key] = dict.fromkeys(table.features, Told(False, "its script did not end"))
        found.cells[key] |= run_script(whole_fleet, client.command, client.env, tuple(table.features))
    told = found.cells[key][feature]
    if told.ok is None:
        pytest.skip(told.why)
    assert told.ok, told.why


@needs_packages
def test_the_document_that_is_published_holds_for_generated_requests(found, tmp_path):
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    # Services of its own, with short answers: a request that forbids the end would generate for minutes.
    # It finds the executors' names in /status, and would send them all home.
    drain = ("--exclude-path-regex", "drain$")
    phases = ("--phases", "coverage,fuzzing", "--checks", checks, "--max-time", "30", "--request-timeout", "120")
    # 504 answers a `timeout_s` that has passed, which a generated request may make very short.
    config = tmp_path / "schemathesis.toml"
    config.write_text('[checks.not_a_server_error]\nexpected-statuses = ["2xx", "3xx", "4xx", "504"]\n')
    tasks = [part for task in ("generate", "embed", "score") for part in ("--task", task)]
    options = {"scheduler_options": SERVED, "executor_options": ("--max-model-len", "256", *tasks)}
    with running_fleet(tmp_path, model=reciter_folder(), **options) as fleet:
        command = [INSTALLED / "bin" / "st", "run", f"{fleet.spec.url}/openapi.json", *phases, *drain, "--no-color"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:]
    (count,) = re.findall(r"(\d+) generated, \1 passed", done.stdout)
    found.num_fuzzed = int(count)
    print(f"{count} generated requests")


def test_the_page_is_of_these_clients_and_features():
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    assert [section.partition("\n")[0] for section in sections[1:]] == [table.title for table in TABLES[1:]]
    for section, table in zip(sections, TABLES, strict=True):
        lines = [line for line in section.splitlines() if line.startswith("|")]
        header, _, *clients = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        assert header[2:] == list(table.features.values())
        assert [row[0] for row in clients] == [client.name for client in table.clients]
        assert all(cell in ("yes", "-") or cell.startswith("no") for row in clients for cell in row[2:])
