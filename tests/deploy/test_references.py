"""What manifests and compose.yaml name exists: options, ports, labels, volumes, secrets, endpoints."""

import re
import shlex
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import pytest
import yaml

from tests.deploy import commands
from tests.deploy.kustomize import all_containers
from tests.deploy.manifests import (
    ALL,
    KUBERNETES,
    OVERLAYS,
    ROOT,
    container,
    labels,
    manifests,
    of_kind,
    options,
    pod,
    port_names,
    selected,
    urls,
    workloads,
)
from tests.deploy.probes import api

WRITTEN = {"--journal", "--health-file"}  # options that name a file which the service writes
READ = {"--curve-keys", "--api-keys", "--model"}  # and those that name what it reads
ON_OVERLAYS = pytest.mark.parametrize("overlay", OVERLAYS)


@ON_OVERLAYS
def test_commands_take_their_arguments(overlay):
    for name, workload in workloads(overlay).items():
        for one in all_containers(workload):
            assert "command" in one or commands.complaints(one["args"]) == [], name


def test_commands_of_compose_take_their_arguments():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    for service in services.values():
        line = re.sub(r'\$\{\w+:\+(.*?"\$\{.*?\}")\}', r"\1", service["command"])  # ${A:+--option "${A:-}"}
        words = shlex.split(re.sub(r"\$\{\w+:-\}", "", line))
        assert commands.complaints(words) == [], line


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["baton-scheduler", "--journul=/x"], "No such option '--journul'"),
        (["baton-scheduler", "--port=http"], "'http' is not a valid integer"),
        (["baton-scheduler", "--port"], "requires an argument"),
        (["baton-scheduler", "--no-journal=x"], "does not take a value"),
        (["baton-executor", "--scheduler=scheduler:5555"], "no endpoint"),
        (["baton-executor", "--name=$(NAME)", "--device=tpu"], "'tpu' is not one of"),
        (["baton-executer"], "No such command 'baton-executer'"),
        (["baton", "rolout"], "No such command 'rolout'"),
        (["baton", "drain"], "Missing argument"),
        (["baton", "drain", "gpu-1", "--expect-build=0.2.0"], "No such option '--expect-build'"),
        (["baton", "keys", "executor", "gpu-1", "--admin"], "No such option '--admin'"),
    ],
)
def test_an_argument_that_is_wrong_is_found(words, complaint):
    (found,) = commands.complaints(words)
    assert complaint in found


@ON_OVERLAYS
def test_ports_are_those_that_the_scheduler_listens_on(overlay):
    scheduler = workloads(overlay)["baton-scheduler"]
    given = options(scheduler)
    listening = {"http": int(given["--port"]), "executors": urlsplit(given["--executor-endpoint"]).port}
    assert {port["name"]: port["containerPort"] for port in container(scheduler)["ports"]} == listening
    for service in of_kind(overlay, "Service"):
        for port in service["spec"]["ports"]:
            assert port["port"] == listening[port["targetPort"]]


@ON_OVERLAYS
def test_selectors_select(overlay):
    for service in of_kind(overlay, "Service"):
        (workload,) = selected(overlay, service["spec"]["selector"])
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= port_names(workload)
    for workload in workloads(overlay).values():
        assert selected(overlay, workload["spec"]["selector"]["matchLabels"]) == [workload]
        for spread in pod(workload).get("topologySpreadConstraints", []):
            assert selected(overlay, spread["labelSelector"]["matchLabels"]) == [workload]
    for budget in of_kind(overlay, "PodDisruptionBudget"):
        assert len(selected(overlay, budget["spec"]["selector"]["matchLabels"])) == 1


@ON_OVERLAYS
def test_executors_find_the_scheduler(overlay):
    services = {service["metadata"]["name"]: service["spec"] for service in of_kind(overlay, "Service")}
    scheduler, executor = workloads(overlay)["baton-scheduler"], workloads(overlay)["baton-executor"]
    endpoint = urlsplit(options(executor)["--scheduler"])
    assert endpoint.port in [port["port"] for port in services[endpoint.hostname]["ports"]]
    assert services[endpoint.hostname]["clusterIP"] == "None"
    assert scheduler["spec"]["serviceName"] in services
    hooks = [urlsplit(url) for url in urls(executor)]
    assert len(hooks) == (overlay != "node-keeper")  # an executor whose successor waits for it waits for none
    for ready in hooks:
        assert ready.port in [port["port"] for port in services[ready.hostname]["ports"]]


@ON_OVERLAYS
def test_what_probes_ask_is_there_and_needs_no_key(overlay):
    app = api(num_ready=1)
    assert app.get("/status").status_code == 401
    probes = [probe for w in workloads(overlay).values() for name, probe in container(w).items() if "Probe" in name]
    assert not any("httpGet" in probe for probe in probes)  # it would take a 503 for a death
    asked = {urlsplit(url).path for workload in workloads(overlay).values() for url in urls(workload)}
    asked |= set(re.findall(r"GET (/\S+) HTTP", str(probes)))
    assert asked == ({"/health"} if overlay == "node-keeper" else {"/health", "/ready"})
    for path in asked:
        assert app.get(path).status_code == 200


@ON_OVERLAYS
def test_network_policies_name_pods_and_ports_that_exist(overlay):
    """What is not ours, clients and Prometheus, is told by a label on its namespace or by `baton-client`."""
    for policy in of_kind(overlay, "NetworkPolicy"):
        spec = policy["spec"]
        chosen = selected(overlay, spec["podSelector"]["matchLabels"])
        assert chosen
        for rule in spec.get("ingress", []):
            assert {port["port"] for port in rule["ports"]} <= port_names(chosen[0])
        for rule in [*spec.get("ingress", []), *spec.get("egress", [])]:
            for peer in [*rule.get("from", []), *rule.get("to", [])]:
                labels = peer["podSelector"]["matchLabels"]
                if "namespaceSelector" not in peer and "baton-client" not in labels:
                    (other,) = selected(overlay, labels)
                    if "to" in rule:
                        assert {port["port"] for port in rule["ports"]} <= port_names(other)


@ON_OVERLAYS
def test_nobody_but_executors_reaches_their_port(overlay):
    executor_labels = labels(workloads(overlay)["baton-executor"])
    denied, allowed = [], []
    for policy in of_kind(overlay, "NetworkPolicy"):
        rules = policy["spec"].get("ingress", [])
        denied += [policy] if "Ingress" in policy["spec"]["policyTypes"] and not rules else []
        allowed += [rule["from"] for rule in rules if "executors" in [port["port"] for port in rule["ports"]]]
    assert allowed == [[{"podSelector": {"matchLabels": executor_labels}}]]
    (policy,) = denied
    assert selected(overlay, policy["spec"]["podSelector"]["matchLabels"]) == list(workloads(overlay).values())
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


@ON_OVERLAYS
def test_executors_reach_dns_wherever_it_is_and_nothing_else_beyond_the_scheduler(overlay):
    """A cache on the node has no pod, and OpenShift's pods listen on 5353, in a namespace of their own."""
    rules = [rule for policy in of_kind(overlay, "NetworkPolicy") for rule in policy["spec"].get("egress", [])]
    anywhere = [{(port["protocol"], port["port"]) for port in rule["ports"]} for rule in rules if "to" not in rule]
    assert anywhere == [{(protocol, port) for protocol in ("UDP", "TCP") for port in (53, 5353)}]
    assert len(rules) == 2


@ON_OVERLAYS
def test_a_broken_revision_of_the_scheduler_can_be_replaced(overlay):
    """kubernetes.io, StatefulSets, "Forced rollback": with OrderedReady an operator has to delete the pod by hand."""
    for workload in of_kind(overlay, "StatefulSet"):
        assert workload["spec"]["podManagementPolicy"] == "Parallel"


@ON_OVERLAYS
def test_volumes_are_there_and_mounted(overlay):
    claims = {claim["metadata"]["name"] for claim in of_kind(overlay, "PersistentVolumeClaim")}
    for workload in workloads(overlay).values():
        volumes = {volume["name"]: volume for volume in pod(workload)["volumes"]}
        templates = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
        mounts = container(workload)["volumeMounts"]
        assert {mount["name"] for mount in mounts} == volumes.keys() | templates
        for one in all_containers(workload):
            paths = [mount["mountPath"] for mount in one["volumeMounts"]]
            assert len(set(paths)) == len(paths)
            assert {mount["name"] for mount in one["volumeMounts"]} <= volumes.keys() | templates
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims


@ON_OVERLAYS
def test_paths_in_arguments_are_mounted(overlay):
    """What a service reads lies in a volume that it cannot write, and what it writes in one that it can."""
    for workload in workloads(overlay).values():
        mounts = {PurePosixPath(m["mountPath"]): m.get("readOnly", False) for m in container(workload)["volumeMounts"]}
        for option, value in options(workload).items():
            if value.startswith("/"):
                assert option in WRITTEN | READ
                (read_only,) = [
                    ro for path, ro in mounts.items() if path in (p := PurePosixPath(value)).parents or path == p
                ]
                assert read_only == (option in READ), f"{option}={value}"


@ON_OVERLAYS
def test_secrets_are_made_by_a_documented_command_and_never_here(overlay):
    guide = (ROOT / "docs" / "operations.md").read_text()
    assert not of_kind(overlay, "Secret")
    volumes = [volume for workload in workloads(overlay).values() for volume in pod(workload)["volumes"]]
    names = {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    assert len(names) == 2
    for name in names:
        assert f"create secret generic {name} " in guide


@ON_OVERLAYS
def test_pods_are_confined(overlay):
    (uid,) = set(re.findall(r"useradd --uid (\d+)", (ROOT / "Dockerfile").read_text()))
    for workload in workloads(overlay).values():
        spec = pod(workload)
        context = spec["securityContext"]
        assert context["runAsNonRoot"]
        assert context["runAsUser"] == context.get("fsGroup", context["runAsGroup"]) == int(uid)
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in spec["containers"]:
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        assert not spec["automountServiceAccountToken"]
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        paths = [volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume]
        assert set(paths) <= ({"/run/baton"} if overlay == "node-keeper" else set())
        assert all(one["resources"].keys() == {"requests", "limits"} for one in all_containers(workload))


@ON_OVERLAYS
def test_the_namespace_lets_pods_in(overlay):
    """Kubernetes refuses folders of the node where it enforces a standard for pods."""
    (namespace,) = of_kind(overlay, "Namespace")
    volumes = [volume for workload in workloads(overlay).values() for volume in pod(workload)["volumes"]]
    enforced = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert enforced == ("privileged" if any("hostPath" in volume for volume in volumes) else "restricted")


@ON_OVERLAYS
def test_executors_and_their_keeper_meet(overlay):
    """At one path of one volume, as one user; and where they share the process namespace, it can kill them."""
    (executor,) = (w for w in workloads(overlay).values() if container(w)["args"][0] == "baton-executor")
    (keeper,) = (w for w in workloads(overlay).values() if pod(w)["containers"][-1]["args"] == ["baton-keeper"])
    assert (keeper is executor) == (overlay != "node-keeper")
    places = []
    for workload, one in ((executor, container(executor)), (keeper, pod(keeper)["containers"][-1])):
        (path,) = (v["value"] for v in one["env"] if v["name"] == "BATON_KEEPER_SOCKET")
        (mount,) = (m for m in one["volumeMounts"] if PurePosixPath(path).is_relative_to(m["mountPath"]))
        (volume,) = (v for v in pod(workload)["volumes"] if v["name"] == mount["name"])
        assert not mount.get("readOnly")
        assert PurePosixPath(path).parent.parent == PurePosixPath(mount["mountPath"])  # a folder of its own: mode 0700
        assert path in str(one.get("livenessProbe")) or one is container(executor)
        places.append((path, volume, pod(workload)["securityContext"]["runAsUser"]))
    assert places[0] == places[1]
    assert pod(executor)["shareProcessNamespace"]


RECIPES = {path.parent: next(yaml.safe_load_all(path.read_text())) for path in KUBERNETES.rglob("kustomization.yaml")}


def test_every_manifest_is_part_of_something():
    """No file is forgotten by all kustomizations."""
    named = set()
    for folder, content in RECIPES.items():
        named |= {(folder / name).resolve() for name in content.get("resources", [])}
        named |= {(folder / patch["path"]).resolve() for patch in content.get("patches", [])}
    assert {path for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml"} <= named
    assert {name for overlay in OVERLAYS for name in [m["kind"] for m in manifests(overlay)]} >= {"NetworkPolicy"}


def test_every_patch_is_for_something():
    """Kustomize says nothing of a patch whose target is nowhere."""
    there = {(m["kind"], m["metadata"]["name"]) for overlay in ALL for m in manifests(overlay)}
    for folder, content in RECIPES.items():
        for patch in content.get("patches", []):
            kind, name = patch["target"]["kind"], patch["target"]["name"]
            # `gateway` gives its executors a suffix after they are patched.
            found = [one for one in there if one[0] == kind and re.fullmatch(name, one[1])]
            assert found, f"{folder}: {patch['target']}"
