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

from tests.clients.matrix import CLIENTS, FEATURES, INSTALLED, Told, run_script
from tests.clients.table import PAGE, Found, page, versions

NODE_SCRIPTS = Path(__file__).parent / "node"
needs_packages = pytest.mark.clients


@pytest.fixture(scope="module")
def found(fleet) -> Iterator[Found]:
    """What is known of each client; the page is written when all is."""
    for script in NODE_SCRIPTS.glob("*.js"):
        shutil.copy(script, INSTALLED / "node")  # next to the packages: they are looked for from there
    found = Found()
    yield found
    if found.cells.keys() == CLIENTS.keys() and found.num_fuzzed and "BATON_COMPATIBILITY" in os.environ:
        Path(os.environ["BATON_COMPATIBILITY"]).write_text(page(found, versions()))


@needs_packages
@pytest.mark.timeout(300)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", CLIENTS)
def test_client(fleet, found, name, feature):
    client = CLIENTS[name]
    if name not in found.cells:
        found.cells[name] = dict.fromkeys(FEATURES, Told(False, "its script did not end"))
        found.cells[name] |= run_script(fleet, client.command, client.env)
    told = found.cells[name][feature]
    if told.ok is None:
        pytest.skip(told.why)
    assert told.ok, told.why


@needs_packages
def test_the_document_that_is_published_holds_for_generated_requests(fleet, found, tmp_path):
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    # It finds the executors' names in /status, and would send them all home.
    drain = ("--exclude-path-regex", "drain$")
    phases = ("--phases", "coverage,fuzzing", "--checks", checks, "--max-time", "30", "--request-timeout", "120")
    command = [INSTALLED / "bin" / "st", "run", f"{fleet.spec.url}/openapi.json", *phases, *drain, "--no-color"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:]
    (count,) = re.findall(r"(\d+) generated, \1 passed", done.stdout)
    found.num_fuzzed = int(count)


def test_the_page_is_of_these_clients_and_features():
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    header, _, *clients = rows
    assert header[2:] == list(FEATURES.values())
    assert [row[0] for row in clients] == list(CLIENTS)
    assert all(cell in ("yes", "-") or cell.startswith("no") for row in clients for cell in row[2:])
