"""deploy/grafana, deploy/prometheus and KEDA ask for what the scheduler exports, which is read off one that runs."""

import json
import re
import typing
from contextlib import closing

import pytest
import yaml

from common import messages as m
from scheduler_svc.core.autoscaling.settings import ScaleSettings
from scheduler_svc.core.fleet.fleet import FAILURES
from scheduler_svc.store import responses
from scheduler_svc.store.database import connect
from scheduler_svc.store_options import StoreOptions
from tests.deploy.manifests import ROOT
from tests.deploy.promql import FROM_PROMETHEUS, Exported, complaints, legend_complaints, metrics_of
from tests.store import rows
from tests.support.core import FakeExecutor, running_core
from tests.support.eventually import eventually
from tests.support.pages import anchors

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "baton.json").read_text())
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]
GUIDE = (ROOT / "docs" / "operations.md").read_text()
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
CODES = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "protocol.md").read_text().rpartition("Codes:")[2]))
# Frontends refuse with codes of their own, which the API reference has in its tables of errors.
ERRORS = re.findall(r"^\| \d+ \| (`.*?) \|", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)
CODES |= {code for row in ERRORS for code in re.findall(r"`(\w+)`", row)}
SCALED = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "keda" / "scaled-object.yaml").read_text())
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]] + [rule["expr"] for rule in RULES]
QUERIES += [trigger["metadata"]["query"] for trigger in SCALED["spec"]["triggers"]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """What a core exports to which nothing has happened yet: a series that only appears with the first failure would
    have no increase by it, and an alert of it would be silent. There is an executor and a request, which have names."""
    folder = tmp_path_factory.mktemp("core") / "store"
    with closing(connect(folder)) as store:
        responses.add(store, rows.response("one", owner=""))
    with running_core(folder.parent, store=StoreOptions(folder), scale=ScaleSettings(0, 2)) as core:
        front, executor = core.frontend(), FakeExecutor(core.back, "first", step_s=0.1)
        late = "\nbaton_executors_wanted ", "\nbaton_store_bytes "  # have no values in the first seconds

        def all_are_told() -> bool:
            front.send(m.MetricsQuery(query_id=1))
            text = front.receive(m.Metrics).text.decode()
            return all(name in text for name in late)

        eventually(all_are_told)
        front.submit("open", [1, 2, 3], max_tokens=150)
        while not front.tokens.get(("open", 0)):
            front.take(front.receive(m.Outputs))
        front.send(m.MetricsQuery(query_id=2))
        text = front.receive(m.Metrics).text.decode()
        front.close()
        executor.kill()
    return Exported.of(text)


@pytest.mark.parametrize("query", QUERIES)
def test_what_is_asked_for_is_exported(query, exported):
    assert complaints(query, exported) == []


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("rate(baton_output_token_total[5m])", "there is no metric baton_output_token_total"),
        ("baton_step_seconds", "there is no metric baton_step_seconds"),  # a histogram has none of its own name
        ('baton_executors{status="ready"}', "baton_executors has no label status"),
        ('baton_executors{state="redy"}', "baton_executors has no state redy"),
        ('baton_executor_epochs_ended_total{cause=~"silent|gone"}', "has no cause gone"),
        ('baton_frontends{job="batn"}', "baton_frontends is asked for job 'batn'"),
        ("sum by (client) (baton_frontends)", "has a label client"),
        ("sum(baton_frontends) / on (executor) sum(baton_frontends)", "has a label executor"),
        ("sum(baton_frontends", "is no PromQL"),
    ],
)
def test_a_query_that_would_be_silent_for_ever_is_found(query, complaint, exported):
    (found,) = complaints(query, exported)
    assert complaint in found


def test_legends_show_labels_that_are_there(exported):
    for panel in PANELS:
        for target in panel["targets"]:
            assert legend_complaints(target["legendFormat"], target["expr"], exported) == []
    assert legend_complaints("{{code}}", "baton_executors", exported) == ["no label code in baton_executors"]


def test_every_metric_is_shown_and_explained(exported):
    """Both ways: every exported metric can be seen, and the guide names only those that are exported."""
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exported.series}
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for query in QUERIES for name in metrics_of(query)}
    names = {name for name in names if not name.startswith("vllm:")}  # ours by another name
    assert shown == names | FROM_PROMETHEUS
    assert set(re.findall(r"^\| `((?:baton|process)_\w+)", GUIDE, flags=re.MULTILINE)) == names


def test_vllms_names_are_explained(exported):
    """The guide's table has each of them, with the metric of ours that it is."""
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exported.series}
    rows = re.findall(r"^\| (`vllm:.*?) \| (`baton.*) \|$", GUIDE, flags=re.MULTILINE)
    listed = [name for theirs, _ in rows for name in re.findall(r"`(vllm:\w+)", theirs)]
    assert sorted(listed) == sorted(name for name in names if name.startswith("vllm:"))
    assert {name for _, ours in rows for name in re.findall(r"`(baton_\w+)", ours)} <= names
    assert all(labels["model_name"] == {"test-model"} for name, labels in exported.series.items() if ":" in name)


def test_every_alert_is_explained():
    explained = re.findall(r"^### (Baton\w+)$", GUIDE, flags=re.MULTILINE)
    assert sorted(explained) == sorted(rule["alert"] for rule in RULES)


def test_alerts_know_all_failures():
    """A new cause of losing an executor must raise an alert and be on the dashboard."""
    flap = next(rule["expr"] for rule in RULES if rule["alert"] == "BatonExecutorsFlap")
    lost = next(panel["targets"][0]["expr"] for panel in PANELS if panel["title"] == "Executors lost")
    for query in (flap, lost):
        (causes,) = re.findall(r'cause=~"(.*?)"', query)
        assert set(causes.split("|")) == set(FAILURES)


def test_an_alert_knows_all_refusals_of_the_store():
    """Whatever the API answers with 507, clients notice, so that a person is called."""
    rows = re.findall(r"^\| 507 \| `(\w+)` \|", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)
    (rule,) = (rule for rule in RULES if rule["alert"] == "BatonStoreRefuses")
    (codes,) = re.findall(r'code=~"(.*?)"', rule["expr"])
    assert set(codes.split("|")) == set(rows)
    assert rule["labels"] == {"severity": "page"}


def test_every_way_to_end_is_counted_before_it_happens(exported):
    causes, outcomes = {*FAILURES, "restarted", "drained", "shutdown"}, {*typing.get_args(m.FinishReason), "refused"}
    assert exported.series["baton_executor_epochs_ended_total"]["cause"] == causes
    assert exported.series["baton_resume_seconds_count"]["cause"] == causes
    assert exported.series["baton_sequences_ended_total"]["outcome"] == outcomes | {"deadline"}
    codes = exported.series["baton_requests_refused_total"]["code"]
    assert codes
    assert codes <= CODES


def test_alerts_say_how_much_they_matter():
    for rule in RULES:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"] in ({"severity": "page"}, {"severity": "ticket"})
        assert rule["annotations"].keys() == {"summary", "runbook_url"}
        assert rule["annotations"]["summary"].endswith(".")


def test_each_alert_leads_to_its_runbook():
    for rule in RULES:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert anchor == rule["alert"].lower()
        assert anchor in anchors(ROOT / page)


def test_nobody_is_woken_by_a_moment():
    for rule in RULES:
        assert rule["labels"] == {"severity": "ticket"} or re.fullmatch(r"30s|[1-5]m", rule["for"]), rule["alert"]


def test_shares_are_of_what_the_service_is_answerable_for():
    """Who hangs up, or is refused, must not make failures look rare."""
    shares = [(rule["alert"], re.findall(r"0\.\d+ \* .*outcome=~\"(.*?)\"", rule["expr"])) for rule in RULES]
    assert [(alert, found[0].split("|")) for alert, found in shares if found] == [
        ("BatonRequestsFail", ["stop", "length", "error"]),
        ("BatonDeadlinesMissed", ["stop", "length", "deadline"]),
    ]


def test_panels_can_be_told_apart_and_lie_side_by_side():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_dashboard_can_be_imported_anywhere():
    """It names no data source of ours, and every panel asks the one that is chosen."""
    assert DASHBOARD["id"] is None
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "job"]
    for panel in PANELS:
        assert {target["datasource"]["uid"] for target in [panel, *panel["targets"]]} == {"${datasource}"}
        assert all('job="$job"' in target["expr"] for target in panel["targets"])
