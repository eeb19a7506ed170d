"""deploy/grafana and deploy/prometheus ask for what the scheduler exports, which is read off one that runs."""

import json
import re
import typing

import pytest
import yaml

from common import messages as m
from scheduler_svc.fleet import FAILURES
from tests.deploy.manifests import ROOT
from tests.deploy.promql import FROM_PROMETHEUS, Exported, complaints, legend_complaints, metrics_of
from tests.support.core import FakeExecutor, running_core

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "baton.json").read_text())
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]
GUIDE = (ROOT / "docs" / "operations.md").read_text()
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]] + [rule["expr"] for rule in RULES]

# Label values that need not have occurred in the run below.
CAUSES = {*FAILURES, "restarted", "drained", "shutdown"}
OUTCOMES = {*typing.get_args(m.FinishReason), "refused"}
CODES = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "protocol.md").read_text().rpartition("Codes:")[2]))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """What a core exports after a bit of everything: every labelled metric has moved."""
    with running_core(tmp_path_factory.mktemp("core")) as core:
        front = core.frontend()
        first = FakeExecutor(core.back, "first", step_s=0.01)
        front.submit("long", [1, 2, 3], max_tokens=150)
        while not front.tokens.get(("long", 0)):
            front.take(front.receive(m.Outputs))
        second = FakeExecutor(core.back, "second")
        first.kill()
        front.submit("empty", [], max_tokens=1)
        front.gather(("long", 0), ("empty", 0))
        front.submit("open", [1, 2, 3], max_tokens=150)
        front.send(m.MetricsQuery(query_id=1))
        text = front.receive(m.Metrics).text.decode()
        front.close()
        second.kill()
    found = Exported.of(text)
    for label, values in (("cause", CAUSES), ("outcome", OUTCOMES), ("code", CODES)):
        found.allow(label, values)
    return found


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
    """Both ways: nothing is exported that nobody can see, and the guide names nothing that is not there."""
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exported.series}
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for query in QUERIES for name in metrics_of(query)}
    assert shown == names | FROM_PROMETHEUS
    assert set(re.findall(r"^\| `(baton_\w+)", GUIDE, flags=re.MULTILINE)) == names


def test_every_alert_is_explained():
    explained = re.findall(r"^### (Baton\w+)$", GUIDE, flags=re.MULTILINE)
    assert sorted(explained) == sorted(rule["alert"] for rule in RULES)


def test_alerts_know_all_failures():
    """A new cause of losing an executor must not be one that nobody hears of."""
    flap = next(rule["expr"] for rule in RULES if rule["alert"] == "BatonExecutorsFlap")
    lost = next(panel["targets"][0]["expr"] for panel in PANELS if panel["title"] == "Executors lost")
    for query in (flap, lost):
        (causes,) = re.findall(r'cause=~"(.*?)"', query)
        assert set(causes.split("|")) == set(FAILURES)


def test_alerts_say_how_much_they_matter():
    for rule in RULES:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"] in ({"severity": "page"}, {"severity": "ticket"})
        assert rule["annotations"]["summary"].endswith(".")


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
