"""A real Chromium on the page, which notes everything that a reader of the page should never meet."""

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from importlib.resources import files

import pytest

from tests import ROOT

SHOTS = ROOT / "build" / "page-shots"
WIDE, NARROW = 1280, 390
KEY = "baton.key"  # in sessionStorage (api.js)

# Runs in the document before any script of the page. Policies of the page do not apply to it.
_OBSERVE = """
window.seen = {violations: [], shifts: [], longTasks: []};
addEventListener("securitypolicyviolation", (event) => {
  seen.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`);
});
const named = (node) => node?.cloneNode?.(false).outerHTML ?? "?";
const noteShifts = (entries) => {
  for (const entry of entries) {
    if (entry.hadRecentInput) continue;  // the reader did something, and expects that the page changes
    seen.shifts.push({value: entry.value, nodes: entry.sources.map((source) => named(source.node))});
  }
};
const noteTasks = (entries) => seen.longTasks.push(...entries.map((entry) => entry.duration));
const shiftObserver = new PerformanceObserver((list) => noteShifts(list.getEntries()));
const taskObserver = new PerformanceObserver((list) => noteTasks(list.getEntries()));
shiftObserver.observe({type: "layout-shift", buffered: true});
taskObserver.observe({type: "longtask", buffered: true});
seen.flush = () => { noteShifts(shiftObserver.takeRecords()); noteTasks(taskObserver.takeRecords()); };
"""


@contextlib.contextmanager
def running_browser() -> Iterator["Browser"]:
    """Debian's Chromium. The test skips where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install --editable '.[dev]'")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs a Chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        # Root has no sandbox in a container, and everything that is opened here is our own. The names that are reserved
        # for examples lead to this machine, as the owner of a name can have DNS say.
        arguments = ["--no-sandbox", "--host-resolver-rules=MAP *.example 127.0.0.1"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield Browser(browser)
        browser.close()


class Browser:
    """Opens pages of services, each in a context of its own: without cookies, storage or cache of the others."""

    def __init__(self, browser):
        self._browser = browser

    @contextlib.contextmanager
    def visit(self, url, view="talk", *, width=WIDE, dark=False, key=None, **options):
        """A reader's visit to the service at a URL, which fails if the page was not clean.

        Args:
            view: what the address names, perhaps with an argument: `request/chatcmpl-5`.
            key: the tab has this API key already.
            options: of the browser's context.
        """
        scheme = "dark" if dark else "light"
        size = {"width": width, "height": 800}
        context = self._browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce", **options)
        context.set_default_timeout(120_000)  # a rollout of two executors takes half a minute where cores are busy
        context.add_init_script(_OBSERVE)
        if key is not None:
            # Once, so that a test sees what becomes of it.
            once = f"if (location.protocol !== 'about:' && !sessionStorage.getItem('{KEY}'))"
            context.add_init_script(f"{once} sessionStorage.setItem('{KEY}', {json.dumps(key)});")
        visit = Visit(context, url)
        try:
            visit.page.goto(f"{url}/#{view}")
            yield visit
            visit.check()
        finally:
            visit.tell()
            context.close()


class Visit:
    """One reader, whose pages must stay clean: no errors, nothing against the policy, nothing from other hosts, and no
    request that fails. Tests name what they expect to fail with `expects`.

    Attributes:
        page: the first tab.
        service: host and port that the page comes from.
    """

    def __init__(self, context, url):
        self._context = context
        self._url = url
        self._expected = []
        self._noted = []
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self._note(f"uncaught: {error.error}"))
        context.on("request", self._on_request)
        context.on("requestfailed", self._on_failure)
        context.on("response", self._on_response)
        self.requests = []
        self.page = context.new_page()

    def new_tab(self, view="talk"):
        """Another tab of the same reader."""
        page = self._context.new_page()
        page.goto(f"{self._url}/#{view}")
        return page

    def expects(self, *patterns):
        """Do not count errors whose text or URL has one of these regular expressions, now and later."""
        self._expected += patterns

    def problems(self):
        """Everything so far that was not expected."""
        for page in self._context.pages:
            page.evaluate("seen.flush()")
            self._noted += [f"policy: {each}" for each in page.evaluate("seen.violations.splice(0)")]
        return [each for each in self._noted if not any(re.search(pattern, each) for pattern in self._expected)]

    def check(self):
        """Fail for any problem so far."""
        problems = self.problems()
        assert not problems, "\n".join(problems)

    def tell(self):
        """Print what the page shows, for a test that fails."""
        for page in self._context.pages:
            with contextlib.suppress(Exception):  # it may have crashed
                print(f"--- {page.url}\n{page.inner_text('body', timeout=2000)[:4000]}")
        print("\n".join(["--- noted:", *self._noted]))

    def shifts(self):
        """Layout shifts since this was asked last that no input excuses, each with the elements that moved."""
        self.page.evaluate("seen.flush()")
        return self.page.evaluate("seen.shifts.splice(0)")

    def long_tasks(self):
        """Milliseconds of each task above 50 ms since this was asked last."""
        self.page.evaluate("seen.flush()")
        return self.page.evaluate("seen.longTasks.splice(0)")

    def frames(self, count=2):
        """Return when the browser has drawn so many frames more."""
        frame = "() => new Promise((resolve) => requestAnimationFrame(resolve))"
        for _ in range(count):
            self.page.evaluate(frame)

    def accessible(self):
        """Fail for what axe-core finds serious or critical."""
        axe = (files("axe_playwright_python") / "axe.min.js").read_text()
        self.page.evaluate(axe)
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        severe = [each for each in found if each["impact"] in ("serious", "critical")]
        assert not severe, "\n".join(map(_violation, severe))

    def shot(self, name):
        """A picture of the whole page in build/page-shots, for people."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        size = self.page.viewport_size
        height = self.page.evaluate("document.documentElement.scrollHeight")
        self.page.set_viewport_size(size | {"height": height})  # what is not in sight is not drawn
        self.frames(5)
        self.page.screenshot(path=SHOTS / f"{name}.png")
        self.page.set_viewport_size(size)

    def _note(self, text):
        self._noted.append(text)

    def _on_console(self, message):
        if message.type in ("error", "warning"):
            self._note(f"console: {message.text} ({message.location.get('url', '')})")

    def _on_request(self, request):
        self.requests.append(request)
        if not request.url.startswith(("data:", "blob:", f"{self._url}/")):
            self._note(f"other host: {request.url}")

    def _on_failure(self, request):
        # The page's own doing: it stops reading, or the reader leaves.
        if request.failure != "net::ERR_ABORTED":
            self._note(f"failed: {request.method} {request.url}: {request.failure}")

    def _on_response(self, response):
        if response.status >= 400:
            self._note(f"status {response.status}: {response.request.method} {response.url}")


def _violation(found):
    nodes = "\n".join(f"    {node['html'][:200]}\n      {node['failureSummary']}" for node in found["nodes"][:5])
    return f"{found['id']} ({found['impact']}): {found['help']}\n{nodes}"
