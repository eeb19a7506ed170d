"""Keys that a running service cannot read any more: it goes on with those of before, and says so everywhere."""

import contextlib
import re
import subprocess
import sys

from scheduler_svc.client.keys.key_ring import KeyRing
from tests import ROOT
from tests.support.eventually import eventually
from tests.support.plain_http import http
from tests.support.plain_rights import needs_plain_rights, with_plain_rights


@contextlib.contextmanager
def scheduler(ring, log):
    """A scheduler with one frontend, with the rights of a service. Gives its address."""
    keys = ("--curve-keys", ring.scheduler, "--api-keys", ring.api_keys)
    command = [sys.executable, "-m", "scheduler_svc", "--no-journal", "--no-store", "--port", 0, *keys]
    command += ["--executor-endpoint", "tcp://127.0.0.1:0"]
    with log.open("wb") as file:
        process = subprocess.Popen(with_plain_rights(*command), cwd=ROOT, stdout=file, stderr=file)
    try:
        url = eventually(lambda: re.search(r"event=listening url=(\S+)", log.read_text()), told=log.read_text)[1]
        eventually(lambda: "frontend started" in log.read_text(), told=log.read_text)
        yield url
    finally:
        process.terminate()
        process.wait()


@needs_plain_rights
def test_status_metrics_and_log_tell_of_it_until_they_can_be_read(tmp_path):
    ring, log = KeyRing(tmp_path / "keys"), tmp_path / "log"
    ring.init()
    ring.add_executor("gpu-1")
    bearer = {"authorization": f"Bearer {ring.add_api_key('root', admin=True)}"}
    client_key, executor_key = ring.api_keys, ring.scheduler / "executor-gpu-1.key"

    with scheduler(ring, log) as url:

        def told():
            status = http.get(f"{url}/status", headers=bearer).json()["keys_unreadable"]
            text = http.get(f"{url}/metrics", headers=bearer).text
            series = dict(re.findall(r'^baton_keys_unreadable\{whose="(\w+)"\} (\S+)$', text, re.MULTILINE))
            return status, {whose: value == "1.0" for whose, value in series.items()}

        def fails(path):
            return f"{path} cannot be read: Permission denied"

        assert told() == ({}, {"clients": False, "executors": False})
        client_key.chmod(0)
        eventually(lambda: told() == ({"clients": fails(client_key)}, {"clients": True, "executors": False}))
        said = 'event="API keys cannot be read, keeping those of before"'
        eventually(lambda: said in log.read_text())
        executor_key.chmod(0)
        eventually(lambda: told()[0] == {"clients": fails(client_key), "executors": fails(executor_key)})
        client_key.chmod(0o600)
        executor_key.chmod(0o644)
        eventually(lambda: told() == ({}, {"clients": False, "executors": False}))
        ring.scheduler.chmod(0)  # and with it all that is in there
        where = f"{client_key} cannot be read: Permission denied"
        eventually(lambda: told()[0].get("clients") == where and "executors" in told()[0])
        ring.scheduler.chmod(0o700)
        other = ring.add_api_key("bob", metrics=True)
        eventually(lambda: http.get(f"{url}/status", headers={"authorization": f"Bearer {other}"}).status_code == 200)
        eventually(lambda: told()[0] == {})
