"""What a page of the documentation has in it: its text without blocks of code, and the anchors of its headings."""

import re
from pathlib import Path


def without_blocks(page: Path) -> str:
    """Return the page without what stands between fences."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return what headings are called in links, as GitHub makes it of them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
