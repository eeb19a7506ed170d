"""The page's frame in a browser: it loads, keeps to its policy, and asks for a key where one is needed."""

import pytest

from scheduler_svc.frontend.http.page_files import INDEX, POLICY, read_page_files
from tests.page.browsing import KEY

VIEWS = {"talk": "Talk", "fleet": "Fleet", "request": "One request"}


def shown(page):
    """The views that are to be seen."""
    return page.eval_on_selector_all("main > section:not([hidden])", "all => all.map((one) => one.id)")


def test_the_page_loads_and_nothing_from_elsewhere(browser, open_frontend):
    with browser.visit(open_frontend.url) as visit:
        visit.page.wait_for_function("() => document.title === 'Baton: baton-demo'")
        assert "baton-demo" in visit.page.inner_text("#service")
        visit.page.wait_for_selector("#talk:not([hidden])")
        loaded = {request.url.removeprefix(f"{open_frontend.url}/") for request in visit.requests}
        assert {"", *(f"page/{path}" for path in read_page_files() if path not in (INDEX, "icon.svg"))} <= loaded


def test_the_policy_is_in_force(browser, open_frontend):
    """Script and style in markup do nothing, and no other host is reached, whatever came into the page."""
    with browser.visit(open_frontend.url) as visit:
        visit.expects("^policy: ", "^console: ", "^failed: ")
        done = visit.page.evaluate(
            """async () => {
              const script = document.createElement("script");
              script.textContent = "window.ran = true";
              const frame = document.createElement("iframe");
              frame.src = location.href;
              const image = document.createElement("img");
              image.setAttribute("onerror", "window.ran = true");
              image.src = "data:image/png,x";
              document.body.append(script, frame, image);
              const reached = await fetch("http://127.0.0.1:9/").then(() => true, () => false);
              return [window.ran ?? false, reached, frame.contentDocument?.body?.childElementCount ?? 0];
            }"""
        )
        assert done == [False, False, 0]
        visit.page.wait_for_function("() => seen.violations.length >= 4")
        assert "connect-src" in POLICY


def test_views_by_their_addresses(browser, open_frontend):
    with browser.visit(open_frontend.url) as visit:
        page = visit.page
        for name, label in [*VIEWS.items(), ("talk", "Talk")]:
            page.click(f"nav >> text='{label}'")
            page.wait_for_selector(f"#{name}:not([hidden])")
            assert page.eval_on_selector_all("main > section:not([hidden])", "all => all.map((one) => one.id)") == [
                name
            ]
            assert page.get_attribute("nav a[aria-current]", "href") == f"#{name}"
        page.go_back()
        page.wait_for_selector("#request:not([hidden])")
        page.goto(f"{open_frontend.url}/#nonsense")
        page.wait_for_selector("#talk:not([hidden])")


def test_a_copy_is_asked_after_and_kept(browser, open_frontend):
    with browser.visit(open_frontend.url) as visit:
        visit.page.wait_for_selector("#talk:not([hidden])")
        visit.requests.clear()
        visit.page.reload()
        visit.page.wait_for_selector("#talk:not([hidden])")
        [script] = [request for request in visit.requests if request.url.endswith("/page/main.js")]
        assert script.response().status in (200, 304)
        assert script.sizes()["responseBodySize"] == 0, "it came again"


def test_a_key_is_asked_for_until_it_is_right(browser, keyed_frontend, api_key):
    with browser.visit(keyed_frontend.url) as visit:
        page = visit.page
        page.wait_for_selector("dialog#key[open]")
        assert shown(page) == []
        page.keyboard.press("Escape")
        assert page.is_visible("dialog#key")
        page.fill("#key-input", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog#key >> text=does not know this key")
        assert page.evaluate("sessionStorage.length") == 0, "a wrong key is kept"
        page.fill("#key-input", api_key)
        page.keyboard.press("Enter")
        page.wait_for_selector("#talk:not([hidden])")
        assert not page.is_visible("dialog#key")
        stored = "[Object.values(sessionStorage), Object.values(localStorage), document.cookie]"
        in_session, in_local, cookies = page.evaluate(stored)
        assert (in_session, in_local, cookies) == ([api_key], [], "")
        page.reload()
        page.wait_for_selector("#talk:not([hidden])")

        tab = visit.new_tab()
        tab.wait_for_selector("dialog#key[open]")
        assert tab.evaluate("sessionStorage.length") == 0, "another tab has the key"
        assert not [request.url for request in visit.requests if api_key in request.url]


def test_a_key_that_is_not_known_any_more(browser, keyed_frontend, api_key):
    with browser.visit(keyed_frontend.url, key="gone") as visit:
        visit.page.wait_for_selector("dialog#key[open]")
        visit.page.fill("#key-input", api_key)
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_selector("#talk:not([hidden])")
        assert visit.page.evaluate(f"sessionStorage.getItem('{KEY}')") == api_key


def test_the_key_dialog_can_be_used_by_everybody(browser, keyed_frontend):
    for dark in (False, True):
        with browser.visit(keyed_frontend.url, dark=dark) as visit:
            visit.page.wait_for_selector("dialog#key[open]")
            assert visit.page.evaluate("document.activeElement.id") == "key-input"
            visit.accessible()
            visit.shot(f"key-{'dark' if dark else 'light'}")


@pytest.mark.slow
def test_the_service_is_away_when_the_page_begins(browser, open_frontend):
    """The page says so, and goes on by itself."""
    with browser.visit(open_frontend.url) as visit:
        visit.expects("page/about.*net::ERR", "net::ERR.*page/about", "503.*page/about", "console:.*503.*page/about")
        page = visit.page
        page.route("**/page/about", lambda route: route.abort("connectionrefused"))
        page.reload()
        page.wait_for_selector("#service >> text=cannot be reached")
        page.unroute("**/page/about")
        page.route("**/page/about", lambda route: route.fulfill(status=503, body="<h1>Away</h1>"))
        page.wait_for_selector("#service >> text=status 503")
        page.unroute("**/page/about")
        page.wait_for_selector("#talk:not([hidden])")
