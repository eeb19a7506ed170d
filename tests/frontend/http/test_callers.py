"""Without API keys: what foreign pages, foreign names and clients of proxies may not do, and who is this machine."""

import json
import os
import socket
from http.client import HTTPConnection

import pytest
from click.testing import CliRunner

from common import messages as m
from scheduler_svc.__main__ import main
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.http.callers import PROXY_HEADERS, Callers, client_address, host_name, served_hosts
from scheduler_svc.frontend.requests.pooled_request import PooledRequest
from scheduler_svc.frontend_options import FrontendOptions
from tests.support.frontend_process import COMPLETION, assert_openai_shape, running_frontend
from tests.support.plain_http import http

ALLOWED = "baton.example"
PAGE = "https://page.example"
THIS_MACHINE = socket.gethostname()
DRAIN = "/admin/executors/7/drain"


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A frontend without keys at a loopback address."""
    options = ("--openapi", "--open-metrics", "--store", str(tmp_path_factory.mktemp("store")))
    with running_frontend(*options, "--allowed-host", ALLOWED, "--cors-origin", PAGE) as frontend:
        yield frontend


@pytest.fixture(scope="module")
def public():
    """One that other machines reach."""
    with running_frontend(bind="0.0.0.0") as frontend:
        yield frontend


def ask(frontend, method="GET", path="/v1/models", body=None, **headers):
    """The answer to a request with exactly these headers; `{port}` in them is the frontend's. Without a Host it is
    asked for by its address."""
    port = frontend.address[1]
    headers = {"host": "127.0.0.1:{port}", "connection": "close"} | headers
    url = f"http://127.0.0.1:{port}{path}"
    sent = {name.replace("_", "-"): value.format(port=port) for name, value in headers.items()}
    return http.request(method, url, headers=sent, json=body)


def raw(frontend, request):
    """The status that the frontend answers with to these bytes."""
    with socket.create_connection(("127.0.0.1", frontend.address[1]), timeout=10) as connection:
        connection.sendall(request)
        return int(connection.makefile("rb").readline().split()[1])


OWN_HOSTS = [
    *("127.0.0.1:{port}", "127.0.0.1", "127.9.9.9:1", "127.0.0.1.", "10.0.0.7:{port}", "[::1]:{port}"),
    *("[::1]", "[2001:db8::7]:80", "Baton.Example"),
    *("localhost:{port}", "LocalHost", "localhost.:{port}", "localhost:", "tab.localhost:{port}"),
    *(THIS_MACHINE, f"{THIS_MACHINE.upper()}:{{port}}", ALLOWED, f"{ALLOWED}.:443"),
]
OTHER_HOSTS = [
    *("evil.example", "evil.example:{port}", f"evil.{ALLOWED}", f"{ALLOWED}.evil.example", f"{ALLOWED}.."),
    *("127.0.0.1.evil.example", "localhost.evil.example", "notlocalhost", ".localhost.evil.example"),
    *("localhost@evil.example", "localhost:80@evil.example", "evil.example@localhost"),
    *("localhost:80:80", "localhost/x"),
    *("localhost evil.example", "localhost, evil.example", "", "local\u00e9host", "\u0131localhost"),
    *("[evil.example]", "[::1", "::1", "[::1]x", "[127.0.0.1]x", "2130706433", "0x7f.1", ":80", "."),
]


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_its_own_names_are_served(local, host):
    for path in ("/v1/models", "/", "/docs", "/openapi.json", "/page/about", "/metrics", "/status"):
        assert ask(local, path=path, host=host).status_code == 200, path


@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_other_names_are_refused_and_told_how_to_be_allowed(local, host):
    port = local.address[1]
    with socket.create_connection(local.address, timeout=10) as connection:
        head = f"GET /v1/models HTTP/1.1\r\nhost: {host.format(port=port)}\r\nconnection: close\r\n\r\n"
        connection.sendall(head.encode())
        status, _, answer = connection.makefile("rb").read().partition(b"\r\n")
    assert status.startswith(b"HTTP/1.1 403 "), answer
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (error["code"], error["type"]) == ("host_not_allowed", "permission_error")
    assert f"start it with --allowed-host {host_name(host.format(port=port)) or 'NAME'}." in error["message"]


def test_nothing_is_done_under_another_name(local):
    """Whatever the path: a rebound page is of the same origin, so its browser hides nothing and asks nothing first."""
    made = http.post(f"{local.url}/v1/files", data={"purpose": "batch"}, files={"file": ("a", b"secret")}).json()
    evil = {"host": "evil.example:{port}", "origin": "http://evil.example:{port}", "sec_fetch_site": "same-origin"}
    for method, path, body in (
        ("GET", "/", None),
        ("GET", "/docs", None),
        ("GET", "/openapi.json", None),
        ("GET", "/page/about", None),
        ("GET", "/page/api.js", None),
        ("GET", "/page/live", None),
        ("GET", "/metrics", None),
        ("GET", "/status", None),
        ("GET", "/v1/files", None),
        ("GET", f"/v1/files/{made['id']}/content", None),
        ("DELETE", f"/v1/files/{made['id']}", None),
        ("POST", "/v1/completions", COMPLETION),
        ("POST", "/v1/messages", {}),
        ("POST", DRAIN, {}),
        ("POST", "/health", {}),
        ("PATCH", "/nowhere", None),
    ):
        answer = ask(local, method, path, body, **evil)
        assert (answer.status_code, answer.headers["connection"]) == (403, "close"), path
    assert ask(local, "POST", "/v1/messages", {}, **evil).json()["type"] == "error", "Anthropic's shape"
    assert http.get(f"{local.url}/v1/files/{made['id']}/content").content == b"secret"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /v1/models HTTP/1.1\r\n", 400),
        ("GET /v1/models HTTP/1.0\r\n", 403),
        ("GET /v1/models HTTP/1.0\r\nhost: localhost\r\n", 200),
        ("GET /v1/models HTTP/1.0\r\nhost: evil.example\r\n", 403),
        ("GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n", 400),
        ("GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nhost: localhost\r\n", 400),
        ("GET http://evil.example/v1/models HTTP/1.1\r\nhost: localhost\r\n", 404),
        ("GET http://localhost/v1/models HTTP/1.1\r\nhost: evil.example\r\n", 403),
        ("GET http://evil.example/health HTTP/1.1\r\nhost: evil.example\r\n", 403),
        ("GET /health HTTP/1.1\r\nhost: evil.example\r\n", 200),
        ("GET /health HTTP/1.0\r\n", 200),
        ("HEAD /ready HTTP/1.1\r\nhost: 10.1.2.3:8000\r\norigin: https://evil.example\r\n", 200),
        ("GET /ready/ HTTP/1.1\r\nhost: evil.example\r\n", 403),
    ],
)
def test_hosts_of_any_number_and_place_and_probes(local, head, status):
    assert raw(local, f"{head}\r\n".encode()) == status


def test_where_other_machines_reach_it_every_name_is_taken(public):
    for host in ("evil.example", "baton-scheduler.baton.svc.cluster.local:8000", "scheduler", "x_y", ""):
        assert ask(public, host=host).status_code == 200
    assert ask(public, "POST", "/v1/completions", COMPLETION, host="a.example", origin="http://b.example").is_error


def test_where_other_machines_reach_it_names_can_be_limited():
    with running_frontend("--allowed-host", "Baton.Example", "--allowed-host", "scheduler", bind="0.0.0.0") as frontend:
        for host in ("baton.example", "scheduler:8000", "localhost", "192.0.2.1", THIS_MACHINE):
            assert ask(frontend, host=host).status_code == 200
        assert ask(frontend, host="evil.example").status_code == 403
        assert ask(frontend, path="/ready", host="evil.example").status_code == 200, "a kubelet's"


def test_a_service_with_keys_needs_none_of_this():
    """No foreign page has a key, and a browser attaches none."""
    with running_frontend(BATON_API_KEYS="alpha") as frontend:
        foreign = {"host": "evil.example", "origin": PAGE, "sec_fetch_site": "cross-site"}
        key = {"authorization": "Bearer alpha"}
        assert ask(frontend, "POST", "/v1/completions", COMPLETION, **foreign, **key).status_code == 200
        assert ask(frontend, "POST", "/v1/completions", COMPLETION, **foreign).status_code == 401


LOCAL = "http://127.0.0.1:{port}"
SAME, SITE, CROSS = ({"sec_fetch_site": site} for site in ("same-origin", "same-site", "cross-site"))
VISIT = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),  # no browser
        ({"sec_fetch_mode": "cors"}, True),  # Node's fetch
        ({"sec_fetch_site": "none"}, True),  # what a user has typed
        ({"origin": LOCAL}, True),
        ({"origin": LOCAL, **SAME}, True),
        ({"origin": LOCAL.replace("http", "https"), "host": "127.0.0.1:{port}"}, True),  # a proxy ends TLS
        ({"origin": "https://baton.example", "host": ALLOWED, **SAME}, True),
        ({"origin": "https://baton.example:8443", "host": ALLOWED, **SAME}, True),  # nginx's $host has no port
        ({"origin": "https://other.example", **SAME}, True),  # a proxy sends a Host of its own
        ({"origin": PAGE, **CROSS}, True),
        ({"origin": PAGE}, True),
        ({"origin": "https://evil.example", **CROSS}, False),
        ({"origin": "https://evil.example"}, False),  # an old browser
        ({"origin": "http://localhost:{port}", **SITE}, False),  # another name, another origin
        ({"origin": "http://127.0.0.1:9", **SITE}, False),  # another service of this machine
        ({"origin": "http://127.0.0.1"}, False),
        ({"origin": "null", **CROSS}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "http://"}, False),
        ({"origin": f"{LOCAL}.evil.example"}, False),
        ({"origin": f"{PAGE}.evil.example", **CROSS}, False),
        ({"origin": "chrome-extension://abc"}, False),
        ({"origin": LOCAL, **CROSS}, False),
        (CROSS, False),
        (SITE, False),
    ],
)
def test_foreign_pages_are_refused(local, headers, passes):
    for method, path, body in (
        ("POST", "/v1/completions", COMPLETION),
        ("GET", "/v1/models", None),
        ("GET", "/status", None),
        ("GET", "/metrics", None),
        ("GET", "/openapi.json", None),
    ):
        answer = ask(local, method, path, body, **headers)
        if passes:
            assert answer.status_code == 200
            continue
        error = assert_openai_shape(answer, 403)
        assert error["code"] == "origin_not_allowed"
        assert "--cors-origin " in error["message"]
        assert "access-control-allow-origin" not in answer.headers
    assert ask(local, path="/health", **headers).status_code == 200


def test_a_refused_page_is_told_which_origin_to_allow(local):
    said = ask(local, "POST", "/v1/completions", COMPLETION, origin="https://evil.example").json()["error"]["message"]
    assert "by pages of https://evil.example." in said
    assert "start it with --cors-origin https://evil.example." in said
    said = ask(local, "POST", "/v1/completions", COMPLETION, origin="null").json()["error"]["message"]
    assert "by pages of other sites." in said
    assert "start it with --cors-origin ORIGIN." in said
    assert 'event="request refused" code=origin_not_allowed' in local.log


def test_links_lead_to_the_pages_for_people_and_nowhere_else(local):
    for site in (CROSS, SITE):
        for path in ("/", "/docs"):
            assert ask(local, path=path, **site, **VISIT).status_code == 200
            assert ask(local, path=path, **site, **VISIT | {"sec_fetch_dest": "iframe"}).status_code == 403
            assert ask(local, path=path, **site).status_code == 403
            assert ask(local, "POST", path, **site, **VISIT).status_code == 403
        for path in ("/status", "/metrics", "/v1/models", "/page/live", "/openapi.json"):
            assert ask(local, path=path, **site, **VISIT).status_code == 403


def test_pages_of_every_origin_may_be_allowed_but_do_not_speak_for_this_machine():
    with running_frontend("--cors-origin", "*") as frontend:
        evil = {"origin": "https://evil.example", **CROSS}
        assert ask(frontend, "POST", "/v1/completions", COMPLETION, **evil).status_code == 200
        assert ask(frontend, **CROSS).status_code == 200
        assert ask(frontend, "POST", DRAIN, {}, **evil).status_code == 403
        assert ask(frontend, "POST", DRAIN, {}, host="evil.example").status_code == 403
        assert not frontend.core.drains
        assert ask(frontend, "POST", DRAIN, {}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "may_drain"),
    [
        ({}, True),
        ({"host": "localhost:{port}"}, True),
        ({"host": "[::1]:{port}"}, True),
        ({"origin": LOCAL}, True),
        ({"host": "localhost", "origin": "https://localhost"}, True),
        ({"x_forwarded": "1", "traceparent": "00-1-1-00", "x_request_id": "a"}, True),
        ({"host": "scheduler:8000"}, False),
        ({"host": THIS_MACHINE}, False),
        ({"host": "192.0.2.7"}, False),
        ({"host": "rebound.example", "origin": "http://rebound.example"}, False),
        ({"host": ""}, False),
        *(({name: "192.0.2.7"}, False) for name in sorted(PROXY_HEADERS)),
        *(({f"x-forwarded-{name}": "x"}, False) for name in ("for", "proto", "host", "port", "ssl", "client-cert")),
    ],
)
def test_only_this_machine_drains_and_not_what_a_proxy_sends_on(public, headers, may_drain):
    public.core.forget()
    answer = ask(public, "POST", DRAIN, {}, **headers)
    assert ask(public, path="/page/about", **headers).json()["is_admin"] == may_drain
    assert len(public.core.drains) == may_drain
    if may_drain:
        assert answer.status_code == 200
    else:
        assert "at localhost or a loopback address, without a proxy" in assert_openai_shape(answer, 403)["message"]


def test_who_asks_in_http_1_0_is_a_proxy(public):
    """nginx, unless its configuration says otherwise, adds no header and names itself by no name of its client's."""
    public.core.forget()
    head = "host: 127.0.0.1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    assert raw(public, f"POST {DRAIN} HTTP/1.0\r\n{head}".encode()) == 403
    assert not public.core.drains
    assert raw(public, f"POST {DRAIN} HTTP/1.1\r\n{head}".encode()) == 200


def test_who_connects_by_another_address_is_not_this_machine(public):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; the kernel chooses the address that it would send from
        address = probe.getsockname()[0]
    connection = HTTPConnection(address, public.address[1], timeout=10)
    connection.request("POST", DRAIN, headers={"host": "localhost"})
    assert connection.getresponse().status == 403


def test_what_counts_as_reached_by_this_machine_alone(tmp_path):
    own = frozenset((THIS_MACHINE.lower(),))
    for family, address, hosts in (
        (socket.AF_INET, ("127.0.0.1", 0), own),
        (socket.AF_INET, ("127.8.8.8", 0), own),
        (socket.AF_INET6, ("::1", 0), own),
        (socket.AF_INET, ("0.0.0.0", 0), None),
        (socket.AF_INET6, ("::", 0), None),
        (socket.AF_UNIX, str(tmp_path / "socket"), own),
        (socket.AF_UNIX, f"\0baton-test-{os.getpid()}", own),
    ):
        with socket.socket(family) as listener:
            listener.bind(address)
            assert served_hosts(listener, ()) == hosts
            assert served_hosts(listener, ("Baton.Example.",)) == own | {"baton.example"}


def test_a_machine_with_a_name_that_no_host_can_have_takes_no_empty_one(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "my machine")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert served_hosts(listener, ()) == frozenset()


@pytest.mark.parametrize(
    "name",
    [
        *("https://baton.example", "baton.example:8000", "baton.example/x", "*", "*.example"),
        *(".example", "bücher", "[::1]"),
        "",
    ],
)
def test_an_option_that_is_no_name_is_refused(name):
    done = CliRunner().invoke(main, ["--allowed-host", name])
    assert done.exit_code == 2
    assert f"{name!r} is not a host's name" in done.stderr


def scope(peer, *forwarded):
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    return {"type": "http", "client": (peer, 5) if peer else None, "headers": headers}


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("10.0.0.7", [], "10.0.0.7"),
        ("10.0.0.7", ["9.9.9.9"], "9.9.9.9"),
        ("10.0.0.7", ["6.6.6.6, 9.9.9.9"], "9.9.9.9"),
        ("10.0.0.7", ["9.9.9.9", "8.8.8.8"], "8.8.8.8"),
        ("10.0.0.7", ["9.9.9.9:5678"], "9.9.9.9"),
        ("10.0.0.7", ["2001:db8::7"], "2001:db8::7"),
        ("10.0.0.7", ["[2001:DB8::7]:80"], "2001:db8::7"),
        ("10.0.0.7", ["unknown"], "10.0.0.7"),
        ("10.0.0.7", ["9.9.9.9,"], "10.0.0.7"),
        ("::ffff:10.0.0.7", ["9.9.9.9"], "9.9.9.9"),
        ("fd00::1", ["9.9.9.9"], "9.9.9.9"),
        ("192.0.2.1", ["9.9.9.9"], "192.0.2.1"),
        ("192.0.2.1", [], "192.0.2.1"),
        ("fd00::2", ["9.9.9.9"], "fd00::2"),
        ("", ["9.9.9.9"], ""),
    ],
)
def test_only_a_trusted_proxy_says_whom_it_asks_for(peer, forwarded, address):
    trusted = FrontendOptions(trusted_proxy=("10.0.0.0/8", "fd00::1")).trusted_proxies
    assert client_address(scope(peer, *forwarded), trusted) == address


@pytest.mark.parametrize("forwarded", [[], ["9.9.9.9"]])
def test_nobody_is_trusted_unless_it_is_said(forwarded):
    assert client_address(scope("127.0.0.1", *forwarded), ()) == "127.0.0.1"


@pytest.mark.parametrize(
    ("peer", "forwarded", "network"),
    [
        ("10.0.0.7", [], "10.0.0.7"),
        ("::ffff:10.0.0.7", [], "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", [], "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", [], "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", [], "2001:db8:1:3::/64"),
        ("fe80::1%eth0", [], "fe80::/64"),
        ("", [], ""),
        ("", ["9.9.9.9"], ""),
        ("testclient", [], ""),
        ("10.0.0.7", ["9.9.9.9"], "10.0.0.7"),
        ("192.0.2.1", ["6.6.6.6, 9.9.9.9"], "9.9.9.9"),
        ("192.0.2.1", ["::ffff:9.9.9.9"], "9.9.9.9"),
        ("192.0.2.1", ["[2001:DB8::7]:80"], "2001:db8::/64"),
        ("192.0.2.1", ["unknown"], "192.0.2.1"),
    ],
)
def test_without_keys_a_client_is_an_address_or_the_network_that_one_machine_has(peer, forwarded, network):
    callers = Callers(trusted_proxies=FrontendOptions(trusted_proxy=("192.0.2.0/24",)).trusted_proxies)
    assert callers.network_of(scope(peer, *forwarded)) == network


@pytest.fixture
def proxied(tmp_path):
    """A frontend without keys behind a proxy, with a store and no worker."""
    with running_frontend("--trusted-proxy", "127.0.0.1", "--store", str(tmp_path), "--access-log") as frontend:
        yield frontend


def test_the_core_is_told_where_a_request_comes_from_and_nothing_else_is(proxied, tmp_path):
    client = {"x_forwarded_for": "6.6.6.6, 2001:db8:1:2:3:4:5:6"}
    assert ask(proxied, "POST", "/v1/completions", COMPLETION | {"prompt": ["x", "y"]}, **client).status_code == 200
    assert ask(proxied, "POST", "/v1/completions", COMPLETION).status_code == 200
    assert [submit.address for submit in proxied.core.submits] == [*["2001:db8:1:2::/64"] * 2, "127.0.0.1"]
    assert {submit.weight for submit in proxied.core.submits} == {1.0}
    body = {"model": COMPLETION["model"], "input": "x", "background": True}
    assert ask(proxied, "POST", "/v1/responses", body, **client).json()["status"] == "queued"
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert COMPLETION["model"].encode() in stored
    assert b"2001:db8" not in stored
    assert "2001:db8:1:2::/64" not in proxied.log, "which has the address itself, as it is asked to"


def test_the_core_is_told_where_an_input_comes_from():
    client = ApiClient("", "", 0, is_admin=False, may_read_status=True, address="192.0.2.7")
    params = m.SamplingParams(max_tokens=1, pooling="hidden")
    [submit] = PooledRequest("embd-1", (bytes(4),), params, "", 0, None).submits(client)
    assert submit.address == "192.0.2.7"
    assert "192.0.2.7" not in repr(client), "which may come into a log"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("proxy.example", "'proxy.example' is no address and no network, such as 10.0.0.7 or 10.0.0.0/8"),
        ("10.0.0.7/33", "'10.0.0.7/33' is no address and no network"),
        ("10.0.0.7/8", "such as 10.0.0.7 or 10.0.0.0/8; the network that this address is in is 10.0.0.0/8"),
        ("", "'' is no address and no network"),
    ],
)
def test_a_trusted_proxy_that_is_none_is_refused_by_its_value(value, said):
    result = CliRunner().invoke(main, ["--trusted-proxy", "10.0.0.1", "--trusted-proxy", value])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
