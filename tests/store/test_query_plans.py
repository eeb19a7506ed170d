"""No statement reads a whole table: what a call costs does not grow with what is stored."""

import re

from scheduler_svc.store import batch_results, batches, files, owners, quotas, responses, sweep
from tests.store import rows
from tests.store.busy_process import one_round

TABLES = "owners|responses|response_contents|files|file_chunks|batches|batch_results|discarded_files|discarded_batches"
# The oldest marks of what was deleted are read in order, as many as a sweep takes.
LIMITED = r"SELECT \w+ FROM discarded_\w+ ORDER BY 1 LIMIT"


def test_every_statement_finds_its_rows_by_an_index(store):
    statements = []
    store.set_trace_callback(statements.append)
    one_round(store, "ann", "one")
    responses.add(store, rows.response("next", previous_id="one"), limit_bytes=100_000)
    rows.get_response(store, "ann", "next", 2.0)
    responses.chain(store, "ann", "next", 2.0, max_responses=5, max_bytes=10_000)
    page = responses.open_background(store, 2.0)
    responses.open_background(store, 2.0, after=page[-1])
    responses.cancel(store, "ann", "next", 2.0)
    responses.delete(store, "ann", "next", 2.0)
    for order in ("asc", "desc"):
        files.list_files(store, "ann", 2.0, after="one", order=order, purpose="batch")
        batches.list_batches(store, "ann", 2.0, after="one", order=order)
    files.read(store, "ann", "one", 2.0, offset=3, limit=5)
    batches.add(store, rows.batch("open"), max_open=100)
    open_ones = batches.open_batches(store, 2.0)
    batches.open_batches(store, 2.0, after=open_ones[-1])
    batch_results.lines_done(store, "ann", "one", 2.0, first=0, last=3)
    quotas.used_bytes(store, "ann")
    quotas.is_leaving(store, "ann")
    responses.count_open(store, "ann", 2.0)
    batches.count_open(store, "ann", 2.0)
    responses.count_all_open(store)
    batches.count_all_open(store)
    owners.revoke(store, "ann", 3.0, errors=b"e")
    sweep.sweep(store, 4.0 + owners.KEPT_S, known=["bob"])
    store.set_trace_callback(None)
    plans = {
        statement: [detail for *_, detail in store.execute(f"EXPLAIN QUERY PLAN {statement}")]
        for statement in statements
        if re.match(r"\s*(SELECT|UPDATE|DELETE|WITH)", statement) and not re.match(LIMITED, statement)
    }
    assert len(plans) > 40
    scans = rf"SCAN ({TABLES})(?! USING (COVERING )?INDEX \w+_open)"
    whole = {statement: plan for statement, plan in plans.items() if any(re.match(scans, step) for step in plan)}
    assert whole == {}
    of_purpose = [plan for statement, plan in plans.items() if "purpose = 'batch'" in statement]
    assert len(of_purpose) == 2
    assert all("files_of_purpose" in step for plan in of_purpose for step in plan), "others of its owner are not read"
