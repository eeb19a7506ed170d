"""What frontends count shows in the core's metrics, also after they are gone."""

from common import messages as m
from scheduler_svc.core.observability.frontend_counts import MAX_SERIES, FrontendTotals
from tests.support.service import Service


def test_counts_of_all_frontends_are_added_up_and_stay():
    service = Service()
    for peer in (b"one", b"two"):
        counts = m.FrontendCounts(
            http=(m.HttpCount(path="/v1/completions", status=400, count=2),),
            refused=(m.NamedCount(name="context_length_exceeded", count=2), m.NamedCount(name="new_code", count=1)),
            ignored=(m.NamedCount(name="messages", count=5),),
        )
        service.say(counts, peer)
        service.core.frontend_gone(peer, service.now)
    assert service.metric('baton_http_requests_total{code="400",path="/v1/completions"}') == 4
    assert service.metric('baton_requests_refused_total{code="context_length_exceeded"}') == 4
    assert service.metric('baton_requests_refused_total{code="new_code"}') == 2
    assert service.metric('baton_ignored_fields_total{place="messages"}') == 10


def test_strangers_names_make_no_end_of_series():
    totals = FrontendTotals()
    for name in map(str, range(3 * MAX_SERIES)):
        count = m.NamedCount(name=name, count=1)
        http = m.HttpCount(path=name, status=200, count=1)
        totals.add(m.FrontendCounts(http=(http,), refused=(count,), ignored=(count,)))
    for family in totals.families():
        assert len(family.samples) <= MAX_SERIES + 1
        assert sum(sample.value for sample in family.samples) == 3 * MAX_SERIES
    assert totals.add(m.FrontendCounts(refused=(m.NamedCount(name="another", count=1),))) == {"other": 1}
