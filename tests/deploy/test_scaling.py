"""deploy/kubernetes/keda and tensor-parallel; and what holds of these and of gateways alike."""

import re
import shlex
import textwrap
from urllib.parse import urlsplit

import pytest

from common.heartbeats import LOSS_TIMEOUT_S
from executor_svc.service.registration import LEAVE_TIMEOUT_S
from tests.deploy import commands
from tests.deploy.kustomize import all_containers, pod_templates, render
from tests.deploy.manifests import ROOT, manifests, of_kind, only, options, workloads

GATEWAYS = ("gateway", "gateway-gpu")
GROUPS = ("tensor-parallel", "tensor-parallel-gpu")
ON_GROUPS = pytest.mark.parametrize("overlay", GROUPS)
PAGES = [ROOT / "docs" / "scale.md", ROOT / "docs" / "kubernetes.md"]
TORCHRUN = ["python", "-m", "torch.distributed.run"]


@pytest.mark.parametrize("overlay", [*GATEWAYS, *GROUPS])
def test_commands_take_their_arguments(overlay):
    found = set()
    for manifest in manifests(overlay):
        for one in all_containers(manifest):
            if one["image"].startswith("baton-") and "command" not in one:
                words = [word for word in one["args"] if word]
                if words[:3] == TORCHRUN:
                    words = ["baton-executor", *words[words.index("executor_svc") + 1 :]]
                assert commands.complaints(words) == []
                found.add(words[0])
    assert found >= {"baton-scheduler", "baton-executor"}


@pytest.mark.parametrize("overlay", [*GATEWAYS, *GROUPS])
def test_our_pods_are_confined_and_their_volumes_there(overlay):
    (secrets, claims) = {"baton-scheduler-keys", "baton-executor-keys"}, {"baton-models"}
    for manifest in manifests(overlay):
        for template in pod_templates(manifest):
            spec = template["spec"]
            assert spec["securityContext"]["runAsNonRoot"]
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for one in spec["containers"]:
                assert not one["securityContext"]["allowPrivilegeEscalation"]
                assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
                ours = one["image"].startswith("baton-")
                assert one["securityContext"].get("readOnlyRootFilesystem", not ours) == ours or not ours
            volumes = {volume["name"]: volume for volume in spec["volumes"]}
            templates = {claim["metadata"]["name"] for claim in manifest["spec"].get("volumeClaimTemplates", [])}
            mounted = {mount["name"] for one in spec["containers"] for mount in one["volumeMounts"]}
            assert mounted == volumes.keys() | templates
            assert {v["secret"]["secretName"] for v in volumes.values() if "secret" in v} <= secrets
            assert {
                v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v
            } <= claims


def test_executors_are_as_many_as_the_scheduler_wants():
    scaled, scheduler = only("keda", "ScaledObject")["spec"], workloads("keda")["baton-scheduler"]
    assert scaled["scaleTargetRef"] == {"name": "baton-executor"}  # a Deployment, if nothing else is said
    assert "replicas" not in workloads("keda")["baton-executor"]["spec"], "apply would set the number back"
    limits = (options(scheduler)["--min-executors"], options(scheduler)["--max-executors"])
    assert (str(scaled["minReplicaCount"]), str(scaled["maxReplicaCount"])) == limits
    (trigger,) = scaled["triggers"]
    assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("AverageValue", "1")
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert re.findall(r"baton_\w+", trigger["metadata"]["query"]) == ["baton_executors_wanted"]
    for direction in scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"].values():
        assert direction["stabilizationWindowSeconds"] == 0, "the scheduler has waited already"
        assert direction["policies"] == [{"type": "Pods", "value": scaled["maxReplicaCount"], "periodSeconds": 15}]
    assert scaled["pollingInterval"] * scaled["fallback"]["failureThreshold"] >= 10 * LOSS_TIMEOUT_S


def test_kubernetes_own_autoscaler_counts_what_executors_request():
    autoscaler, executor = only("edge", "HorizontalPodAutoscaler")["spec"], workloads("edge")["baton-executor"]
    assert autoscaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "baton-executor"}
    assert "replicas" not in executor["spec"], "apply would set the number back"
    (metric,) = autoscaler["metrics"]
    assert metric["resource"]["target"]["type"] == "Utilization"
    for one in all_containers(executor):
        assert "cpu" in one["resources"]["requests"], "of which the utilization is a share"


def test_what_leads_in_from_outside_finds_the_scheduler():
    """The Ingress and the ServiceMonitor: each by a port that one Service has, at which a policy lets it in."""
    services = {service["metadata"]["name"]: service for service in of_kind("edge", "Service")}
    for ingress in of_kind("edge", "Ingress"):
        for path in ingress["spec"]["rules"][0]["http"]["paths"]:
            assert path["path"].startswith("/v1")
            backend = path["backend"]["service"]
            assert backend["port"]["name"] in [port["name"] for port in services[backend["name"]]["spec"]["ports"]]
    monitor = only("edge", "ServiceMonitor")["spec"]
    wanted, (endpoint,) = monitor["selector"]["matchLabels"].items(), monitor["endpoints"]
    found = [
        name
        for name, service in services.items()
        if wanted <= service["metadata"]["labels"].items()
        and endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    ]
    assert found == ["baton"], "the job that the alerts expect"
    assert f"create secret generic {endpoint['authorization']['credentials']['name']} " in PAGES[1].read_text()
    callers = [
        rule["from"] for policy in of_kind("edge", "NetworkPolicy") for rule in policy["spec"].get("ingress", [])
    ]
    assert any("ingress-nginx" in str(peers) for peers in callers)


@ON_GROUPS
def test_a_group_is_one_executor(overlay):
    group = only(overlay, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart"
    leader, worker = (group[f"{role}Template"]["spec"] for role in ("leader", "worker"))
    assert leader["containers"][0]["args"] == worker["containers"][0]["args"]
    given = dict(word.split("=", 1) for word in leader["containers"][0]["args"] if "=" in word)
    assert given["--nnodes"] == "$(LWS_GROUP_SIZE)"
    assert given["--node-rank"] == "$(LWS_WORKER_INDEX)"
    assert given["--master-addr"] == "$(LWS_LEADER_ADDRESS)"
    (port,) = leader["containers"][0]["ports"]
    assert str(port["containerPort"]) == given["--master-port"]
    own = {variable["name"] for variable in leader["containers"][0]["env"]}
    used = set(re.findall(r"\$\((\w+)\)", " ".join(leader["containers"][0]["args"])))
    assert {name for name in used if not name.startswith("LWS_")} <= own
    assert "readinessProbe" not in worker["containers"][0], "only rank 0 touches the file"
    assert leader["terminationGracePeriodSeconds"] > 30 + LEAVE_TIMEOUT_S  # torchrun's patience with a rank is 30 s
    services = {service["metadata"]["name"]: service["spec"] for service in of_kind(overlay, "Service")}
    endpoint = urlsplit(given["--scheduler"])
    assert endpoint.port in [port["port"] for port in services[endpoint.hostname]["ports"]]


@ON_GROUPS
def test_ranks_reach_each_other_and_no_one_else_reaches_them(overlay):
    group = only(overlay, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    own = group["leaderTemplate"]["metadata"]["labels"]
    assert group["workerTemplate"]["metadata"]["labels"] == own
    peers = [{"podSelector": {"matchLabels": own}}]
    (policy,) = (p for p in of_kind(overlay, "NetworkPolicy") if p["metadata"]["name"] == "baton-ranks")
    assert policy["spec"]["podSelector"]["matchLabels"] == own
    assert policy["spec"]["ingress"] == [{"from": peers}]
    assert policy["spec"]["egress"] == [{"to": peers}]
    for other in of_kind(overlay, "NetworkPolicy"):
        if other is not policy and other["spec"]["podSelector"]["matchLabels"].items() <= own.items():
            assert not other["spec"].get("ingress")
    (budget,) = of_kind(overlay, "PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"] == own


def test_what_the_pages_say_to_type_would_be_taken():
    calls = [call for page in PAGES for call in commands.in_blocks(page.read_text())]
    assert any(call.startswith("baton generate") for call in calls)
    for call in calls:
        assert commands.complaints(shlex.split(call, comments=True)) == []


def test_what_the_pages_say_to_apply_can_be_rendered(tmp_path):
    blocks = re.findall(
        r"^ *```yaml\n(.*?)^ *```", "".join(page.read_text() for page in PAGES), re.DOTALL | re.MULTILINE
    )
    recipes = [textwrap.dedent(block) for block in blocks if "kind: Kustomization" in block]
    kinds = set()
    for recipe in recipes:
        (tmp_path / "kustomization.yaml").write_text(recipe.replace("- deploy/", f"- {ROOT}/deploy/"))
        kinds |= {manifest["kind"] for manifest in render(tmp_path)}
    assert kinds >= {"ScaledObject", "InferencePool", "HTTPRoute", "LeaderWorkerSet"}
    assert kinds >= {"Ingress", "ServiceMonitor", "HorizontalPodAutoscaler"}
