"""deploy/kubernetes/gateway: several schedulers, and what leads to which of them."""

import base64
import re
from urllib.parse import urlsplit

import pytest
import yaml

from scheduler_svc.client.http.resume import SESSION_HEADER
from scheduler_svc.core.observability.vllm_names import ALIASES
from tests.deploy.manifests import container, of_kind, only, options, pod, port_names, selected, urls, workloads
from tests.deploy.probes import api, run

ON_GATEWAYS = pytest.mark.parametrize("overlay", ["gateway", "gateway-gpu"])


@ON_GATEWAYS
def test_each_scheduler_has_executors_of_its_own(overlay):
    """They call it by its pod's own name, which its headless Service gives it, ready or not."""
    scheduler = workloads(overlay)["baton-scheduler"]
    (headless,) = (s for s in of_kind(overlay, "Service") if s["metadata"]["name"] == scheduler["spec"]["serviceName"])
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"]
    executors = [w for w in workloads(overlay).values() if container(w)["args"][0] == "baton-executor"]
    pods = [f"baton-scheduler-{index}" for index in range(scheduler["spec"]["replicas"])]
    names = [f"{name}.{headless['metadata']['name']}" for name in pods]
    assert sorted(urlsplit(options(executor)["--scheduler"]).hostname or "" for executor in executors) == names
    for executor in executors:
        endpoint = urlsplit(options(executor)["--scheduler"])
        assert f":{endpoint.port}" in options(scheduler)["--executor-endpoint"][-6:]
        for url in urls(executor):
            assert urlsplit(url).hostname == endpoint.hostname
            assert str(urlsplit(url).port) == options(scheduler)["--port"]
        assert selected(overlay, executor["spec"]["selector"]["matchLabels"]) == [executor]
        for spread in pod(executor)["topologySpreadConstraints"]:
            assert selected(overlay, spread["labelSelector"]["matchLabels"]) == [executor]


@ON_GATEWAYS
def test_selectors_of_a_gateway_select(overlay):
    for budget in of_kind(overlay, "PodDisruptionBudget"):
        assert len(selected(overlay, budget["spec"]["selector"]["matchLabels"])) == 1
    for policy in of_kind(overlay, "NetworkPolicy"):
        chosen = selected(overlay, policy["spec"]["podSelector"]["matchLabels"])
        assert chosen
        for rule in policy["spec"].get("ingress", []):
            assert {port["port"] for port in rule["ports"]} <= port_names(chosen[0])
    (gateway,) = only(overlay, "HTTPRoute")["spec"]["parentRefs"]
    told = str(of_kind(overlay, "NetworkPolicy"))
    assert told.count(f"'gateway.networking.k8s.io/gateway-name': '{gateway['name']}'") == 2


@ON_GATEWAYS
def test_the_pool_is_the_schedulers(overlay):
    pool = only(overlay, "InferencePool")["spec"]
    (scheduler,) = selected(overlay, pool["selector"]["matchLabels"])
    assert scheduler["metadata"]["name"] == "baton-scheduler"
    assert [str(port["number"]) for port in pool["targetPorts"]] == [options(scheduler)["--port"]]
    services = {service["metadata"]["name"]: service["spec"] for service in of_kind(overlay, "Service")}
    picker = services[pool["endpointPickerRef"]["name"]]
    (port,) = picker["ports"]
    assert port["port"] == pool["endpointPickerRef"]["port"]["number"]
    (workload,) = selected(overlay, picker["selector"])
    assert port["targetPort"] in port_names(workload)
    assert f"--pool-name={only(overlay, 'InferencePool')['metadata']['name']}" in container(workload)["args"]


@ON_GATEWAYS
def test_a_client_that_comes_back_is_led_to_the_scheduler_that_it_had(overlay):
    scheduler = workloads(overlay)["baton-scheduler"]
    services = {service["metadata"]["name"]: service["spec"] for service in of_kind(overlay, "Service")}
    *known, last = only(overlay, "HTTPRoute")["spec"]["rules"]
    assert len(known) == scheduler["spec"]["replicas"]
    for index, rule in enumerate(known):
        name = f"{scheduler['metadata']['name']}-{index}"
        (match,), (backend,) = rule["matches"], rule["backendRefs"]
        token = base64.b64encode(f"{scheduler['metadata']['namespace']}/{name}".encode()).decode()
        assert match["path"] == {"type": "PathPrefix", "value": "/v1/requests"}
        assert match["headers"] == [{"type": "Exact", "name": SESSION_HEADER, "value": token}]
        service = services[backend["name"]]
        assert service["selector"] == {"statefulset.kubernetes.io/pod-name": name}
        assert service["publishNotReadyAddresses"], "also while it has no executors"
        assert backend["port"] == service["ports"][0]["port"]
    assert [match["path"]["value"] for match in last["matches"]] == ["/v1"]
    assert (last["backendRefs"][0]["kind"], last["backendRefs"][0]["name"]) == ("InferencePool", "baton")


def picker_config(overlay: str) -> dict:
    config: dict = yaml.safe_load(only(overlay, "ConfigMap")["data"]["config.yaml"])
    return config


@ON_GATEWAYS
def test_the_endpoint_picker_finds_its_configuration_and_the_metrics(overlay):
    config = picker_config(overlay)
    plugins = {plugin["type"]: plugin.get("parameters", {}) for plugin in config["plugins"]}
    (profile,) = config["schedulingProfiles"]
    assert {plugin["pluginRef"] for plugin in profile["plugins"]} <= plugins.keys()
    assert plugins["session-affinity-scorer"]["headerName"] == SESSION_HEADER
    assert plugins["metrics-data-source"] == {"scheme": "http", "path": "/metrics"}
    assert {alias.name for alias in ALIASES} >= {"vllm:num_requests_waiting", "vllm:num_requests_running"}
    assert "--open-metrics" in container(workloads(overlay)["baton-scheduler"])["args"]
    picker = workloads(overlay)["baton-endpoint-picker"]
    (mount,) = container(picker)["volumeMounts"]
    (volume,) = pod(picker)["volumes"]
    assert volume["configMap"]["name"] == only(overlay, "ConfigMap")["metadata"]["name"]
    assert options(picker)["--config-file"] == f"{mount['mountPath']}/config.yaml"
    (binding,) = of_kind(overlay, "RoleBinding")
    assert binding["subjects"][0] == {
        "kind": "ServiceAccount",
        "name": pod(picker)["serviceAccountName"],
        "namespace": binding["metadata"]["namespace"],
    }


@pytest.mark.parametrize(("num_ready", "exit_code"), [(1, 0), (0, 1)])
def test_a_scheduler_without_executors_gets_no_new_requests(num_ready, exit_code):
    """It is not ready then, as its readiness probe asks for executors and the others' probes do not."""
    one = container(workloads("gateway")["baton-scheduler"])
    code = one["readinessProbe"]["exec"]["command"][-1]
    (path,) = re.findall(r"http://127\.0\.0\.1:8000(/\w+)", code)
    assert (api(num_ready).get(path).status_code != 200) == exit_code
    for probe in ("startupProbe", "livenessProbe"):
        assert path not in one[probe]["exec"]["command"][-1]


def test_the_readiness_probe_of_a_scheduler_fails_where_none_listens():
    *python, code = container(workloads("gateway")["baton-scheduler"])["readinessProbe"]["exec"]["command"]
    done = run([*python, code.replace(":8000", ":1")])
    assert done.returncode == 1
    assert "refused" in done.stderr
