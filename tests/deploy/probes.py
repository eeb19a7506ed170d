"""What Kubernetes asks of a pod by commands and HTTP: the commands, and the API that the HTTP goes to."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

from starlette.testclient import TestClient

from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.http.api import ApiSettings, create_app
from scheduler_svc.frontend.link.request_counts import RequestCounts
from scheduler_svc.frontend_options import FrontendOptions
from tests.deploy.manifests import exec_commands, workloads

EXECUTOR, SCHEDULER = (workloads("base")[name] for name in ("baton-executor", "baton-scheduler"))
COMMANDS = dict(exec_commands(EXECUTOR))
READY, ALIVE, DRAIN = (COMMANDS[name] for name in ("readinessProbe", "livenessProbe", "preStop"))
# How long the hook bears a scheduler that does not answer, and how long it waits for another executor.
PATIENCE_S, MAX_WAIT_S = DRAIN[-2:]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command as a kubelet would."""
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def api(num_ready: int) -> TestClient:
    """Return a frontend's API with a key, to which so many executors are ready. It has no core, so serves nothing."""
    link = SimpleNamespace(is_up=True, fleet=SimpleNamespace(num_ready=num_ready, tasks=()), counts=RequestCounts())
    model = SimpleNamespace(vocab_size=1, folder=Path(), eos_token_ids=(), chat_template=None)
    settings = ApiSettings(FrontendOptions(("model",), no_page=True), api_keys=ApiKeys(["secret"]))
    return TestClient(create_app(link, model, settings))
