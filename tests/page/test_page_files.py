"""The page's files: all there, small, from this service alone, and without a way by which text becomes markup."""

import posixpath
import re

import httpx
import pytest

from scheduler_svc.frontend.http.page_files import INDEX, PAGE_HEADERS, POLICY, read_page_files
from tests.support.frontend_process import assert_openai_shape, running_frontend
from tests.support.plain_http import NO_TLS, http

MAX_BYTES = 100_000  # of all files together, as they are sent: a phone on a slow line has them within seconds
FILES = read_page_files()
SCRIPTS = sorted(path for path in FILES if path.endswith(".js"))
IMPORT = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*["']([^"']+)["']""")
# What reads markup or code from text. `h` and `fill` (dom.js) put text into text nodes.
MARKUP = re.compile(
    r"\b(innerHTML|outerHTML|insertAdjacentHTML|setHTML\w*|parseFromString|createContextualFragment|srcdoc)\b"
    r"|\bdocument\s*\.\s*write|\beval\s*\(|\bnew\s+Function\b|\bset(?:Timeout|Interval)\s*\(\s*[\"'`]|javascript:"
)
NAMESPACES = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")


@pytest.fixture
def url(open_frontend):
    return open_frontend.url


def text_of(path):
    return FILES[path].content.decode()


def referenced():
    """Every file that another one names, and which one does."""
    for name in re.findall(r"""(?:href|src)="([^"#]+)\"""", text_of(INDEX)):
        assert name.startswith("page/"), f"{INDEX} names {name}, which no key-less path serves"
        yield name.removeprefix("page/"), INDEX
    for path in SCRIPTS:
        for name in IMPORT.findall(text_of(path)):
            assert name.startswith("."), f"{path} imports {name}: no import map says what that is"
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), name)), path
    for path in FILES:
        if path.endswith(".css"):
            for name in re.findall(r"""url\(["']?([^"')]+)""", text_of(path)):
                yield posixpath.normpath(posixpath.join(posixpath.dirname(path), name)), path


def test_every_file_that_is_named_is_served(url):
    names = set(referenced())
    assert {"main.js", "base.css", "icon.svg"} <= {name for name, _ in names}
    with httpx.Client(verify=NO_TLS, base_url=url) as client:
        for name, by in sorted(names):
            answer = client.get(f"/page/{name}")
            assert answer.status_code == 200, f"{by} names {name}"
            assert answer.content == FILES[name].content


def test_every_script_is_used():
    """What no file imports is dead weight."""
    assert set(SCRIPTS) == {name for name, _ in referenced() if name.endswith(".js")}


def test_weight(url):
    sizes = {}
    for path in FILES:
        with http.stream("GET", f"{url}/page/{path}", headers={"accept-encoding": "gzip"}) as answer:
            sizes[path] = sum(map(len, answer.iter_raw()))
    assert sum(sizes.values()) < MAX_BYTES, sizes


def test_who_cannot_read_compressed_files_gets_others(url):
    for path in ("/", "/page/main.js"):
        plain = http.get(url + path, headers={"accept-encoding": "identity"})
        packed = http.get(url + path, headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert "accept-encoding" in plain.headers["vary"].lower()
        assert plain.content == packed.content


@pytest.mark.parametrize("path", sorted(FILES))
def test_no_file_names_another_host(path):
    text = text_of(path)
    for namespace in NAMESPACES:
        text = text.replace(namespace, "")
    assert not re.findall(r"(?:https?:|wss?:|[\"'(=]\s*)//[\w.-]+", text)


@pytest.mark.parametrize("path", SCRIPTS)
def test_no_script_makes_markup_of_text(path):
    assert not [match[0] for match in MARKUP.finditer(text_of(path))]


def test_no_script_or_style_is_in_the_markup():
    """The policy forbids them, so they would be broken."""
    index = text_of(INDEX)
    assert not re.findall(r"""<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=""", index)
    for path in SCRIPTS:
        assert not re.findall(r"""setAttribute\(\s*["'](?:style|on\w+)["']|\bstyle:\s*["'`]""", text_of(path)), path


def test_policy(url):
    for path in ("/", "/page/main.js"):
        headers = http.get(url + path).headers
        assert {name: headers[name] for name in PAGE_HEADERS} == PAGE_HEADERS
    allowed = dict(part.split(" ", 1) for part in POLICY.split("; "))
    assert allowed["default-src"] == "'none'"
    assert set(allowed.values()) == {"'none'", "'self'"}, "nothing inline, no eval, no other host"


def test_a_browser_keeps_its_copy(url):
    for path in ("/", "/page/base.css"):
        answer = http.get(url + path)
        assert answer.headers["cache-control"] == "no-cache"
        again = http.get(url + path, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == answer.headers["etag"]
        assert http.get(url + path, headers={"if-none-match": '"another"'}).content == answer.content
        head = http.head(url + path)
        assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", answer.headers["etag"])


def test_types(url):
    for path, expected in (
        ("", "text/html; charset=utf-8"),
        ("page/main.js", "text/javascript; charset=utf-8"),
        ("page/base.css", "text/css; charset=utf-8"),
        ("page/icon.svg", "image/svg+xml"),
    ):
        assert http.get(f"{url}/{path}").headers["content-type"] == expected


@pytest.mark.parametrize(
    "path", ["nothing.js", "talk", "talk/", "../page_files.py", "..%2f__init__.py", "package.json"]
)
def test_what_is_no_file_of_the_page(url, path):
    assert_openai_shape(http.get(f"{url}/page/{path}"), 404)


def test_without_a_page():
    with running_frontend("--no-page") as frontend:
        for path in ("/", "/page/about", "/page/main.js"):
            assert_openai_shape(http.get(frontend.url + path), 404)
        assert http.get(f"{frontend.url}/v1/models").status_code == 200
