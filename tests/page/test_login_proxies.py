"""The page behind a proxy that logs people in, in a browser: by Basic auth, or by a cookie from a page of its own."""

import base64
import contextlib
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.page.other_pages import NO_ICON, SEND_FORM, UPLOAD, files, other_service, say
from tests.page.talking import Talk
from tests.support.plain_http import http

USER, PASSWORD = "reader", "secret"
BASIC = f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
LOGGED_IN = {"basic": {"http_credentials": {"username": USER, "password": PASSWORD}}, "cookie": {}}
LOGIN_PAGE = b"<!doctype html><title>Log in</title><link rel=icon href=data:,><p>Who are you?"


class LoginProxy:
    """Passes requests with a login on to a frontend, unchanged, and asks others for one.

    Args:
        by: `basic`, or `cookie`: every path leads to /login without it, and /in gives it.

    Attributes:
        port: where it listens on loopback.
        logged_in: whose cookie is taken; another name logs everybody out.
        passed: method and path of each request with a login.
    """

    def __init__(self, by, frontend):
        self.logged_in = "reader"
        self.passed = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if by == "cookie" and self.path == "/in":
                    cookie = f"session={proxy.logged_in}; HttpOnly; Path=/"
                    self._answer(302, b"", **{"location": "/", "set-cookie": cookie})
                elif by == "cookie" and self.path == "/login":
                    self._answer(200, LOGIN_PAGE)
                elif by == "cookie" and f"session={proxy.logged_in}" not in self.headers.get("cookie", ""):
                    self._answer(302, b"", location="/login")
                elif by == "basic" and self.headers.get("authorization") != BASIC:
                    self._answer(401, b"<h1>Log in</h1>", **{"www-authenticate": 'Basic realm="Baton"'})
                else:
                    proxy.passed.append(f"{self.command} {self.path}")
                    with contextlib.suppress(OSError):  # the reader has gone
                        self._pass_on()

            do_POST = do_DELETE = do_GET

            def _answer(self, status, body, **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(body)

            def _pass_on(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                with contextlib.closing(HTTPConnection(*frontend.address, timeout=60)) as connection:
                    connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        if name.lower() != "connection":
                            connection.putheader(name, value)
                    connection.endheaders(body)
                    answer = connection.getresponse()
                    self.send_response_only(answer.status)
                    for name, value in answer.getheaders():
                        if name not in ("connection", "transfer-encoding"):
                            self.send_header(name, value)
                    self.end_headers()
                    while piece := answer.read1():
                        self.wfile.write(piece)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def log_in(visit, by, proxy):
    if by == "cookie":
        visit.page.wait_for_selector("text=Who are you?")
        visit.page.goto(f"{proxy.url}/in")


@pytest.mark.parametrize("by", LOGGED_IN)
def test_a_reader_who_has_logged_in_talks(browser, open_frontend, by):
    with LoginProxy(by, open_frontend) as proxy, browser.visit(proxy.url, **LOGGED_IN[by]) as visit:
        log_in(visit, by, proxy)
        say(visit)
        assert "POST /v1/chat/completions" in proxy.passed


def test_a_service_with_keys_behind_basic_auth(browser, keyed_frontend, api_key):
    """The reader's login and the tab's key arrive both: one does not take the other's place."""
    with (
        LoginProxy("basic", keyed_frontend) as proxy,
        browser.visit(proxy.url, **LOGGED_IN["basic"]) as visit,
    ):
        visit.page.fill("#key-input", api_key)
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_selector("#talk:not([hidden])")
        say(visit)


@pytest.mark.parametrize("by", LOGGED_IN)
def test_a_foreign_page_has_no_use_of_the_login(browser, open_frontend, by):
    """The browser attaches it to what a page of another port sends; the service looks at who sends."""
    with (
        LoginProxy(by, open_frontend) as proxy,
        other_service(UPLOAD) as port,
        browser.visit(proxy.url, **LOGGED_IN[by]) as visit,
    ):
        log_in(visit, by, proxy)
        visit.page.wait_for_selector("#talk-input")
        visit.expects(f"other host: http://127.0.0.1:{port}", "403", NO_ICON)
        visit.page.goto(f"http://127.0.0.1:{port}")
        with visit.page.expect_navigation() as response:  # to the answer
            visit.page.evaluate(SEND_FORM, f"{proxy.url}/v1/files")
        assert "POST /v1/files" in proxy.passed, "without the login this test would show nothing"
        assert response.value.status == 403
        assert files(open_frontend) == []


def test_a_reader_who_is_logged_out_is_told_so(browser, open_frontend):
    """And goes on after a new login; nothing asks for an API key, which the service does not have."""
    with LoginProxy("cookie", open_frontend) as proxy, browser.visit(proxy.url) as visit:
        log_in(visit, "cookie", proxy)
        say(visit)
        proxy.logged_in = "another"
        talk = Talk(visit)
        talk.say("Are you there?")
        talk.wait_for_state("failed")
        assert "log in: load this page again" in talk.answer.inner_text()
        assert not visit.page.is_visible("dialog#key")
        visit.page.reload()
        log_in(visit, "cookie", proxy)
        say(visit)


def test_answers_of_a_proxy_are_not_taken_for_the_services(browser, open_frontend):
    """Its 401 says nothing of the API key."""
    with LoginProxy("basic", open_frontend) as proxy:
        answer = http.get(f"{proxy.url}/page/about")
        assert answer.status_code == 401
    with browser.visit(open_frontend.url) as visit:
        visit.expects("401")
        visit.page.wait_for_selector("#talk-input")
        visit.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=401, body=answer.text))
        talk = Talk(visit)
        talk.say("Are you there?")
        talk.wait_for_state("failed")
        assert "log in: load this page again" in talk.answer.inner_text()
        assert not visit.page.is_visible("dialog#key")


def test_a_login_in_the_address(browser, open_frontend):
    """With one there, a browser sends nothing whose address has it too."""
    with LoginProxy("basic", open_frontend) as proxy:
        with_login = f"http://{USER}:{PASSWORD}@127.0.0.1:{proxy.port}"
        with browser.visit(with_login) as visit:
            visit.expects(f"other host: {proxy.url}")  # the same one, without the login
            say(visit)
