"""A service behind a real nginx, as deploy/nginx sets it up, and as the Ingress of deploy/kubernetes does.

No ingress controller runs here: its annotations are translated into nginx's own settings, as ingress-nginx does.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from scheduler_svc.client.processes.local_fleet import free_ports
from tests.deploy.manifests import ROOT, of_kind
from tests.e2e.service import Service, count_open, output_of, read, start_baton
from tests.support.eventually import eventually

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = [
    pytest.mark.skipif(NGINX is None, reason="needs nginx: apt-get install nginx-light"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, to make a certificate"),
    pytest.mark.timeout(180),
]

NAME = "baton.example"
MAIN = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    {temporary}
    {servers}
}}
"""
MEGABYTE = 2**20
LONG = {"model": "baton-demo", "prompt": "JULIET:\nO Romeo! ", "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
OPTIONS = ("--allowed-host", NAME, "--no-api-keys", "--access-log", "--trusted-proxy", "127.0.0.1")
CLOSED = [
    *("/metrics", "/status", "/admin/executors/executor-0/drain", "/metrics/", "//metrics", "/%6detrics", "/./metrics"),
    *("/v1/../metrics", "/v1/%2e%2e/metrics", "/v1/..%2fmetrics", "/admin", "/%61dmin/executors/executor-0/drain"),
]


def written_by_hand(service_port: int) -> str:
    """The servers of deploy/nginx."""
    return (ROOT / "deploy" / "nginx" / "baton.conf").read_text().replace("127.0.0.1:8000", f"127.0.0.1:{service_port}")


def made_of_the_ingress(service_port: int) -> str:
    """A server as ingress-nginx makes one of our Ingress: a location for each path, with what its annotations say."""
    locations = ""
    for ingress in of_kind("edge", "Ingress"):
        (rule,) = ingress["spec"]["rules"]
        assert rule["host"] == NAME
        settings = ""
        for name, value in ingress["metadata"]["annotations"].items():
            setting = name.removeprefix("nginx.ingress.kubernetes.io/").replace("-", "_")
            seconds = "s" if setting.endswith("_timeout") else ""
            settings += f"{setting.replace('proxy_body_size', 'client_max_body_size')} {value}{seconds};\n"
        for path in rule["http"]["paths"]:
            exactly = "= " if path["pathType"] == "Exact" else ""
            end = "" if exactly else "/"
            locations += f"""
                location {exactly}{path["path"]}{end} {{
                    {settings} proxy_http_version 1.1; proxy_set_header Host $http_host;
                    proxy_set_header X-Forwarded-For $remote_addr; proxy_pass http://127.0.0.1:{service_port};
                }}"""
    secrets = f"ssl_certificate /etc/nginx/{NAME}.crt; ssl_certificate_key /etc/nginx/{NAME}.key;"
    nothing_else = "location / { return 404; }"
    return f"server {{ listen 443 ssl http2; server_name {NAME}; {secrets} {locations} {nothing_else} }}"


CONFIGURATIONS = {"deploy/nginx": written_by_hand, "ingress": made_of_the_ingress}


class Proxy:
    """An nginx in front of a service.

    Attributes:
        port: of TLS; `plain_port` leads there.
    """

    def __init__(self, folder: Path, servers: str) -> None:
        self.port, self.plain_port = free_ports(2)
        self._folder = folder
        self.certificate = folder / "cert.pem"
        subject = ("-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME},DNS:localhost")
        key = ("-newkey", "rsa:2048", "-nodes", "-keyout", str(folder / "key.pem"))
        subprocess.run(
            ["openssl", "req", "-x509", *key, "-days", "1", *subject, "-out", str(self.certificate)],
            check=True,
            capture_output=True,
            timeout=60,
        )
        here = {
            f"/etc/nginx/{NAME}.crt": str(self.certificate),
            f"/etc/nginx/{NAME}.key": str(folder / "key.pem"),
            "listen 443": f"listen 127.0.0.1:{self.port}",
            "listen 80": f"listen 127.0.0.1:{self.plain_port}",
        }
        for there, place in here.items():
            servers = servers.replace(there, place)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = " ".join(f"{kind}_temp_path {folder / kind};" for kind in kinds)
        user = "user root;" if os.geteuid() == 0 else ""
        self._main = folder / "nginx.conf"
        self._main.write_text(MAIN.format(user=user, folder=folder, temporary=temporary, servers=servers))
        self.context = ssl.create_default_context(cafile=str(self.certificate))

    def __enter__(self) -> "Proxy":
        assert NGINX is not None
        command = [NGINX, "-c", str(self._main), "-e", str(self._folder / "error.log")]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        eventually(self._answers, told=(self._folder / "error.log").read_text)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=20)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._process.communicate()
        with contextlib.suppress(httpx.TransportError):
            return self.client().get("/").status_code > 0
        return False

    def client(self) -> httpx.Client:
        """A client that checks the certificate."""
        headers = {"Host": f"{NAME}:{self.port}"}
        return httpx.Client(base_url=f"https://localhost:{self.port}", headers=headers, verify=self.context, timeout=60)

    def raw(self, path: str, method: str = "GET") -> tuple[int, str, bytes]:
        """What comes for a path that nothing on the way has made better: status, kind of content, content."""
        connection = http.client.HTTPSConnection("localhost", self.port, context=self.context, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, headers={"Host": NAME})
            answer = connection.getresponse()
            return answer.status, answer.headers.get("content-type", ""), answer.read()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service"), options=OPTIONS) as running:
        yield running


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def proxy(
    request: pytest.FixtureRequest, service: Service, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    servers = CONFIGURATIONS[request.param](int(service.url.rpartition(":")[2]))
    with Proxy(tmp_path_factory.mktemp("nginx"), servers) as running:
        yield running


def pieces(answer: httpx.Response) -> Iterator[str]:
    """The text of a stream, as it comes."""
    for line in answer.iter_lines():
        field, _, data = line.partition(": ")
        if field == "data" and data != "[DONE]":
            yield from (choice["text"] for choice in json.loads(data)["choices"])


def streaming(client: httpx.Client) -> Any:
    return client.stream("POST", "/v1/completions", json={**LONG, "stream": True})


def test_a_stream_comes_while_it_is_computed_and_ends_with_its_reader(service, proxy):
    with proxy.client() as client, streaming(client) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        texts = pieces(answer)
        assert next(texts)
        with service.executors_frozen():
            assert count_open(service.status()) == 1, "the first piece came before the last one was computed"
        before = service.status()
    eventually(lambda: count_open(service.status()) == 0, told=lambda: "after its reader hung up")
    assert service.status()["output_tokens"] < before["output_tokens"] + LONG["max_tokens"]


def test_bodies_are_as_large_as_the_service_takes_them(proxy):
    """Beyond its limits the service says so itself, up to a MiB more; then nginx does, before anything is passed on."""
    with proxy.client() as client:
        for size, status, is_ours in ((8 * MEGABYTE - 200, 400, True), (8 * MEGABYTE + 200, 413, True)):
            answer = client.post("/v1/completions", json={"model": "baton-demo", "prompt": "a" * size, "max_tokens": 1})
            assert (answer.status_code, "error" in answer.text) == (status, is_ours), answer.text[:300]
        answer = client.post("/v1/completions", content=b" " * (10 * MEGABYTE))
        assert (answer.status_code, answer.headers["content-type"]) == (413, "text/html")
        content = b'{"custom_id": "a"}\n' * MEGABYTE
        uploaded = client.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})
        assert uploaded.status_code == 200, uploaded.text[:300]
        assert uploaded.json()["bytes"] == len(content) > 9 * MEGABYTE
        assert client.delete(f"/v1/files/{uploaded.json()['id']}").status_code == 200


@pytest.mark.parametrize("path", CLOSED)
def test_what_is_for_operators_is_closed(service, proxy, path):
    """Also under names that mean the same to the service."""
    for method in ("GET", "POST"):
        status, kind, content = proxy.raw(path, method)
        assert (status, kind) == (404, "text/html"), content[:300]
    assert httpx.get(f"{service.url}/metrics").status_code == 200


def test_a_service_without_keys_serves_its_own_name_and_takes_nobody_for_its_operator(proxy):
    with proxy.client() as client:
        assert client.get("/v1/models").status_code == 200
        foreign = client.get("/v1/models", headers={"Host": "other.example"})
        assert foreign.status_code in (403, 404)
        by_a_page = client.get("/v1/models", headers={"Origin": "https://other.example"})
        assert by_a_page.json()["error"]["code"] == "origin_not_allowed"
        own = client.get("/v1/models", headers={"Origin": f"https://{NAME}:{proxy.port}"})
        assert own.status_code == 200


def test_the_service_knows_its_clients_addresses(service, proxy):
    asked = f"by-{proxy.port}"
    transport = httpx.HTTPTransport(verify=proxy.context, local_address="127.0.0.9")
    with httpx.Client(transport=transport, timeout=60) as client:
        answer = client.get(f"https://localhost:{proxy.port}/v1/models", headers={"Host": NAME, "x-request-id": asked})
    assert answer.status_code == 200
    (line,) = eventually(lambda: [each for each in service.logs().splitlines() if asked in each], told=service.logs)
    assert " address=127.0.0.9 " in line


def test_plain_http_leads_to_tls(proxy, request):
    if "ingress" in request.node.callspec.id:
        pytest.skip("ingress-nginx does that by itself where a host has TLS")
    answer = httpx.get(f"http://127.0.0.1:{proxy.plain_port}/v1/models", headers={"Host": NAME})
    assert (answer.status_code, answer.headers["location"]) == (308, f"https://{NAME}/v1/models")


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["executor-0", "scheduler"])
def test_a_stream_survives_what_is_killed(service, proxy, killed, monkeypatch):
    """The executor's death is a pause; after the scheduler's, the client asks for the rest through nginx."""
    monkeypatch.setenv("SSL_CERT_FILE", str(proxy.certificate))
    asked = ("generate", LONG["prompt"], "--max-tokens", 400, "--ignore-eos", "--temperature", 0)
    calm = service.run(*asked)
    process = start_baton(f"https://localhost:{proxy.port}", *asked)
    begun = read(process, 10)
    service.kill(killed)
    assert begun + output_of(process, outages=killed == "scheduler") == calm


def test_both_take_bodies_of_the_same_sizes():
    conf = (ROOT / "deploy" / "nginx" / "baton.conf").read_text()
    limits = re.findall(r"client_max_body_size (\d+)m", conf)
    annotations = [ingress["metadata"]["annotations"] for ingress in of_kind("edge", "Ingress")]
    assert [a["nginx.ingress.kubernetes.io/proxy-body-size"] for a in annotations] == [f"{n}m" for n in limits]
