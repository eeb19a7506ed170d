"""Pages of other sites at a service without API keys, in a browser: what they cannot do, and what goes on working."""

import json

import pytest

from tests.page.other_pages import NO_ICON, SEND_FORM, UPLOAD, files, other_service, say
from tests.support.cuttable_proxy import CuttableProxy
from tests.support.frontend_process import COMPLETION, running_frontend
from tests.support.plain_http import http

STATUS = "([url, options]) => fetch(url, options).then((answer) => answer.status, () => 'no answer')"


def at(host, frontend):
    return f"http://{host}:{frontend.address[1]}"


@pytest.mark.parametrize("host", ["evil.example", "localhost"])
def test_a_form_of_another_service_uploads_nothing(browser, open_frontend, host):
    """A browser sends forms without asking first; of localhost, it takes each port for the same site."""
    target = at("localhost", open_frontend)
    with other_service(UPLOAD) as port, browser.visit(f"http://{host}:{port}") as visit:
        visit.expects(f"other host: {target}", "403", NO_ICON)
        with visit.page.expect_navigation() as response:  # to the answer
            visit.page.evaluate(SEND_FORM, f"{target}/v1/files")
        assert response.value.request.method == "POST"
        assert response.value.status == 403
        assert "--cors-origin" in response.value.json()["error"]["message"]
    assert files(open_frontend) == []


def test_other_pages_get_no_answers_and_have_links(browser, open_frontend):
    target = at("127.0.0.1", open_frontend)
    page = f"<a href={target}/>Baton</a><a href={target}/docs>docs</a><a href={target}/status>status</a>"
    with other_service(page) as port, browser.visit(f"http://evil.example:{port}") as visit:
        visit.expects(f"other host: {target}", "403", NO_ICON, "blocked by CORS policy", "ERR_FAILED", "NotSameOrigin")
        with visit.page.expect_response(f"{target}/v1/models") as response:
            visit.page.evaluate(STATUS, [f"{target}/v1/models", {"mode": "no-cors"}])
        assert response.value.status == 403
        assert visit.page.evaluate(STATUS, [f"{target}/v1/models", {}]) == "no answer"
        with visit.page.expect_response(f"{target}/status") as response:
            visit.page.click("text=status")
        assert response.value.status == 403
        for name, title in (("docs", "Baton"), ("Baton", "Baton: baton-demo")):
            visit.page.goto(f"http://evil.example:{port}")
            visit.page.click(f"text={name}")
            visit.page.wait_for_function("(title) => document.title === title", arg=title)
        say(visit)


def test_a_rebound_name_opens_nothing(browser, open_frontend):
    """The owner of a name serves a page and then has the name lead to the service: both are one origin."""
    form = {"data": {"purpose": "batch"}, "files": {"file": ("the reader's", b"secret")}}
    made = http.post(f"{open_frontend.url}/v1/files", **form).json()
    with (
        other_service("") as port,
        CuttableProxy(port) as dns,
        browser.visit(f"http://evil.example:{dns.port}") as visit,
    ):
        dns.lead_to(open_frontend.address[1])
        visit.expects("403")
        for path, options in (
            ("/v1/files", {}),
            (f"/v1/files/{made['id']}/content", {}),
            (f"/v1/files/{made['id']}", {"method": "DELETE"}),
            ("/status", {}),
            ("/page/about", {}),
            ("/v1/completions", {"method": "POST", "body": "{}", "headers": {"content-type": "application/json"}}),
            ("/admin/executors/7/drain", {"method": "POST"}),
        ):
            assert visit.page.evaluate(STATUS, [path, options]) == 403, path
        assert visit.page.goto(f"http://evil.example:{dns.port}/?again").status == 403
        assert "--allowed-host evil.example" in visit.page.inner_text("body")
    assert files(open_frontend) == ["the reader's"]
    assert not open_frontend.core.drains


@pytest.mark.parametrize(
    ("host", "is_admin"),
    [("127.0.0.1", True), ("localhost", True), ("tab.localhost", True), ("baton.example", False)],
)
def test_the_services_own_page_works_under_each_of_its_names(browser, open_frontend, host, is_admin):
    """As a browser asks: a name that is no loopback's has no Sec-Fetch headers without TLS."""
    with browser.visit(at(host, open_frontend)) as visit:
        say(visit)
        about = visit.page.evaluate("fetch('/page/about').then((answer) => answer.json())")
        assert about["is_admin"] == is_admin
        drained = visit.page.evaluate(STATUS, ["/admin/executors/7/drain", {"method": "POST"}])
        visit.expects("403", NO_ICON, "Cross-Origin-Opener-Policy header has been ignored")
        assert drained == (200 if is_admin else 403)
        visit.page.goto(f"{at(host, open_frontend)}/docs")
        visit.page.click("text=openapi.json")
        visit.page.wait_for_url("**/openapi.json")
        assert '"openapi": "3.1.0"' in visit.page.inner_text("body")


def test_a_page_of_an_allowed_origin_uses_the_api(browser):
    options = {"method": "POST", "headers": {"content-type": "application/json"}, "body": json.dumps(COMPLETION)}
    with (
        other_service("") as port,
        running_frontend("--cors-origin", f"http://page.example:{port}") as frontend,
        browser.visit(f"http://page.example:{port}") as visit,
    ):
        visit.expects(f"other host: {frontend.url}")
        assert visit.page.evaluate(STATUS, [f"{frontend.url}/v1/completions", options]) == 200
