"""The page's files, as they are served: all of them in memory, compressed, each with a tag by which a browser keeps its
copy."""

import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing but what this service serves: no script or style in the markup, no other host, no frame around the page.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
PAGE_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # a browser asks whether its copy is the newest
    "vary": "accept-encoding",
}


@dataclass(frozen=True)
class PageFile:
    """One file.

    Attributes:
        gzipped: the content, compressed.
        tag: names the content, for ETag; a weak one, as it is the same for both.
    """

    content: bytes
    gzipped: bytes
    media_type: str
    tag: str


def read_page_files() -> dict[str, PageFile]:
    """All files of the page by their paths, such as `talk/view.js`."""
    return dict(_files_in(files("scheduler_svc.frontend.page") / "files", ""))


def _files_in(folder: Traversable, prefix: str) -> list[tuple[str, PageFile]]:
    found: list[tuple[str, PageFile]] = []
    for entry in folder.iterdir():
        path = prefix + entry.name
        if entry.is_dir():
            found += _files_in(entry, f"{path}/")
            continue
        suffix = f".{entry.name.rpartition('.')[2]}"
        if suffix in TYPES:  # and not what an editor leaves
            content = entry.read_bytes()
            tag = f'W/"{hashlib.sha256(content).hexdigest()[:16]}"'
            found.append((path, PageFile(content, gzip.compress(content, mtime=0), TYPES[suffix], tag)))
    return found
