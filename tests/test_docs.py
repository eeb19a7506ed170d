"""What the documentation points at exists: files, folders, links, headings and targets of make."""

import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.pages import anchors, without_blocks

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCE = re.compile(r"(?:[\w.-]+/)*[\w.-]+\.(?:py|md|yaml|toml|cpp|h|sh|js|css)|(?:[\w.-]+/)+")
# The houses that a page is about, whose names it leaves out of paths. Where nothing else is said it is the scheduler's.
ABOUT: dict[str, tuple[str, ...]] = dict.fromkeys(("README.md", "CONTRIBUTING.md", "CHANGELOG.md"), ())
ABOUT |= {
    "architecture.md": ("scheduler_svc", "executor_svc"),
    "executor.md": ("executor_svc",),
    "gpu.md": ("executor_svc",),
    "scheduling.md": ("scheduler_svc", "scheduler_svc/core"),
}
ON_PAGES = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@ON_PAGES
def test_files_that_a_page_names_exist(page: Path) -> None:
    """By their paths; a file without a folder lies in the root, or in a folder that the page names."""
    homes = [ROOT, *(ROOT / house for house in ABOUT.get(page.name, ("scheduler_svc",)))]
    names = [name for name in re.findall(r"`([^`\n]+)`", without_blocks(page)) if SOURCE.fullmatch(name)]
    places = {name: [home / name for home in homes if (home / name).exists()] for name in names}
    folders = {place if place.is_dir() else place.parent for name in names if "/" in name for place in places[name]}
    bare = {name for name in names if "/" not in name and any((folder / name).is_file() for folder in folders)}
    missing = [name for name in names if not places[name] and name not in bare]
    assert not missing, f"{page.name} names {missing}"


@ON_PAGES
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            other = page.parent / path if path else page
            assert other.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(other), f"{page.name} links to {target}"


@ON_PAGES
def test_targets_of_make_that_a_page_names_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z][a-z0-9.-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"(?:`|^)make ([a-z0-9.-]+)", page.read_text(), re.MULTILINE)
    assert set(named) <= set(targets)
