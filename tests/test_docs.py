"""What the documentation points at exists: files, folders, links and headings."""

import re
from pathlib import Path

import pytest

from tests import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
# Folders from which pages name files; a name without a folder is that of some file.
FOLDERS = ["", "scheduler_svc", "scheduler_svc/core", "executor_svc"]
SOURCE = re.compile(r"(?:[\w.-]+/)*[\w.-]+\.(?:py|md|yaml|toml|cpp|h|sh)|(?:[\w.-]+/)+")
HOUSES = ["common", "kernels", "scheduler_svc", "executor_svc", "keeper_svc", "benchmarks", "tools", "tests", "deploy"]
NAMES = {path.name for house in HOUSES for path in (ROOT / house).rglob("*.*")}
ON_PAGES = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@ON_PAGES
def test_files_that_a_page_names_exist(page: Path) -> None:
    for name in re.findall(r"`([^`\n]+)`", without_blocks(page)):
        if SOURCE.fullmatch(name):
            places = [ROOT / folder / name for folder in FOLDERS]
            found = name in NAMES or any(place.exists() for place in places)
            assert found, f"{page.name} names {name}"


@ON_PAGES
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            other = page.parent / path if path else page
            assert other.exists(), f"{page.name} links to {target}"
            headings = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE) if anchor else []
            anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert not anchor or anchor in anchors, f"{page.name} links to {target}"


@ON_PAGES
def test_targets_of_make_that_a_page_names_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z][a-z0-9.-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"(?:`|^)make ([a-z0-9.-]+)", page.read_text(), re.MULTILINE)
    assert set(named) <= set(targets)
