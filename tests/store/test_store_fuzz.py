"""Everything that the store does, in any order, against dicts; each write may be cut at any point before it is done."""

import shutil
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler_svc.store import batch_results, batches, files, owners, responses, sweep
from scheduler_svc.store.check import check
from scheduler_svc.store.database import connect
from scheduler_svc.store.errors import ChainTooLong, Conflict, NotFound, QuotaExceeded, TooManyOpen
from scheduler_svc.store.quotas import used_bytes
from scheduler_svc.store.records import OPEN_BATCH, OPEN_RESPONSE, RECORD_BYTES, ChainLink
from tests.store import rows
from tests.support.effort import examples

OWNERS = st.sampled_from(["", "ann"])
IDS = st.sampled_from(["a", "b"])
BODIES = st.binary(max_size=12)
LIVES = st.sampled_from([None, None, 4.0, 9.0])
LIMITS = st.sampled_from([0, 0, 0, 600, 900])
CUTS = st.sampled_from([0, 0, 1, 7, 20, 60, 150, 400])  # instructions of SQLite until it is interrupted; 0: never
TOTAL = 6
LINES = st.lists(st.tuples(st.integers(0, TOTAL - 1), st.booleans()), max_size=8)


class StoreMachine(RuleBasedStateMachine):
    """Models: records by (owner, id), those that have expired included until a sweep; contents of files; results."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="baton-store-"))
        self.store = connect(self.folder)
        self.now = 1.0
        self.responses, self.files, self.batches = {}, {}, {}
        self.contents, self.results = {}, {}
        self.discarded = Counter()  # bytes by owner that were deleted since the last sweep
        self.revoked = {}  # owners, since when
        self.patches = [
            mock.patch.object(batch_results, "FINALIZE_ROWS", 2),
            mock.patch.object(files, "MAX_CHUNK_BYTES", 12),
            mock.patch.object(files, "UNFINISHED_S", 3.0),
            mock.patch.object(sweep, "SPARE_PAGES", 0),
            mock.patch.object(batches, "INPUT_KEPT_S", 1.0),
            mock.patch.object(owners, "KEPT_S", 2.0),
        ]
        for patch in self.patches:
            patch.start()

    @initialize(reopens=st.booleans())
    def begin(self, reopens):
        self.reopens = reopens

    def teardown(self):
        for patch in self.patches:
            patch.stop()
        self.store.close()
        shutil.rmtree(self.folder)

    def do(self, cut, function, *args, **kwargs):
        """A call, which is cut after some instructions first: then nothing has happened, and the call is made again."""
        if cut:
            shots = [1]  # the statement that undoes the others is not cut
            self.store.set_trace_callback(lambda statement: shots.clear() if statement == "ROLLBACK" else None)
            self.store.set_progress_handler(lambda: shots.pop() if shots else 0, cut)
            try:
                return function(self.store, *args, **kwargs)
            except sqlite3.OperationalError as error:
                cause = str(error)
            finally:
                self.store.set_progress_handler(None, 0)
                self.store.set_trace_callback(None)
            assert cause == "interrupted"
            assert not self.store.in_transaction
            if self.reopens:
                self.store.close()
                self.store = connect(self.folder)
        return function(self.store, *args, **kwargs)

    def attempt(self, expected, cut, function, *args, **kwargs):
        """A call that raises `expected` if that is not None. Returns whether it succeeded, and with what."""
        try:
            outcome = True, self.do(cut, function, *args, **kwargs)
        except (NotFound, Conflict, QuotaExceeded, ChainTooLong, TooManyOpen) as error:
            outcome = False, error
        assert expected is (None if outcome[0] else type(outcome[1])), (function.__name__, outcome)
        return outcome

    def found(self, model, owner, record_id):
        record = model.get((owner, record_id))
        return record if record and (record.expires_at is None or record.expires_at > self.now) else None

    def used(self, owner):
        """Bytes of all that an owner has."""
        total = self.discarded[owner]
        for (whose, _), r in self.responses.items():
            if whose == owner:
                total += RECORD_BYTES + sum(map(len, (r.head, r.input_items, r.output_items, r.tail, r.work, r.tokens)))
        for place in self.files:
            total += RECORD_BYTES + len(self.contents[place]) if place[0] == owner else 0
        for place, b in self.batches.items():
            if place[0] == owner:
                total += len(b.metadata) + len(b.errors) + self.swept_bytes(self.batches, place)
        return total

    def swept_bytes(self, model, place):
        """What a deleted record counts for until it is swept."""
        if model is self.responses or place not in model:
            return 0
        if model is self.files:
            return RECORD_BYTES + len(self.contents[place])
        pending = self.results[place].values() if model[place].status in OPEN_BATCH else []
        return RECORD_BYTES + sum(len(r.body) + len(r.custom_id) for r in pending)

    def refusal(self, model, owner, record_id, num_bytes, limit):
        """What adding a record has to raise. An expired record with this id makes room first."""
        if self.found(model, owner, record_id):
            return Conflict
        old = self.swept_bytes(model, (owner, record_id))
        kept = {place: record for place, record in model.items() if place != (owner, record_id)}
        name = next(n for n in ("responses", "files", "batches") if getattr(self, n) is model)
        with mock.patch.object(self, name, kept):
            used = self.used(owner) + old
        return QuotaExceeded if limit and used + num_bytes > limit else None

    # --- time -----------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 0.5, 2.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule(
        max_rows=st.integers(1, 5),
        max_bytes=st.sampled_from([1, 20, 10_000]),
        known=st.sets(OWNERS) | st.none(),
        cut=CUTS,
    )
    def sweep(self, max_rows, max_bytes, known, cut):
        counts = [0, 0, 0]
        is_more = True
        while is_more:
            swept = self.do(cut, sweep.sweep, self.now, known=known, max_rows=max_rows, max_bytes=max_bytes)
            deleted = (swept.responses, swept.files, swept.batches)
            assert sum(deleted) <= max_rows
            counts = [a + b for a, b in zip(counts, deleted, strict=True)]
            is_more = swept.is_more
            assert check(self.store) == []
        late = []
        if known is not None:
            self.revoked = {owner: since for owner, since in self.revoked.items() if owner not in known}
            late = [owner for owner, since in self.revoked.items() if since + owners.KEPT_S <= self.now]
        for number, model in enumerate((self.responses, self.files, self.batches)):
            gone = [place for place in model if place[0] in late or not self.found(model, *place)]
            assert counts[number] == len(gone)
            for place in gone:
                del model[place]
        self.discarded.clear()
        assert self.store.execute("PRAGMA freelist_count").fetchone() == (0,)
        for table in ("discarded_files", "discarded_batches"):
            assert self.store.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)

    @precondition(lambda self: self.now > 5.0)
    @rule(owner=OWNERS, errors=BODIES, cut=CUTS)
    def revoke_owner(self, owner, errors, cut):
        count = self.do(cut, owners.revoke, owner, self.now, errors=errors)
        self.revoked.setdefault(owner, self.now)
        for place, record in self.responses.items():
            if place[0] == owner and self.found(self.responses, *place) and record.status in OPEN_RESPONSE:
                self.responses[place] = msgspec.structs.replace(record, status="cancelled", work=b"")
                count -= 1
        for place in [place for place in self.batches if place[0] == owner and self.found(self.batches, *place)]:
            status = self.batches[place].status
            if status == "validating":
                self.become(*place, status="failed", failed_at=self.now, errors=errors)
            elif status == "in_progress":
                facts = {"finalizing_at": self.now, "ends_as": "failed", "errors": errors}
                self.become(*place, status="finalizing", **facts)
            count -= status in {"validating", "in_progress"}
        assert count == 0

    # --- responses ------------------------------------------------------------------------------------------------

    @rule(
        owner=OWNERS,
        name=st.sampled_from("abc"),
        previous=st.none() | st.sampled_from("ab"),
        life=LIVES,
        body=BODIES,
        limit=LIMITS,
        cut=CUTS,
    )
    def add_response(self, owner, name, previous, life, body, limit, cut):
        times = {"created_at": self.now, "expires_at": None if life is None else self.now + life}
        record = rows.response(name, owner, previous_id=previous, input_items=body, is_background=True, **times)
        size = RECORD_BYTES + len(record.head) + len(record.input_items) + len(record.work)
        expected = self.refusal(self.responses, owner, name, size, limit)
        if self.attempt(expected, cut, responses.add, record, limit_bytes=limit)[0]:
            self.responses[owner, name] = record

    @rule(owner=OWNERS, name=IDS, cut=CUTS)
    def delete_response(self, owner, name, cut):
        expected = None if self.found(self.responses, owner, name) else NotFound
        if self.attempt(expected, cut, responses.delete, owner, name, self.now)[0]:
            del self.responses[owner, name]

    @rule(owner=OWNERS, name=IDS, cut=CUTS)
    def begin_response(self, owner, name, cut):
        record = self.found(self.responses, owner, name)
        did = bool(record and record.status in OPEN_RESPONSE)
        began = self.do(cut, responses.begin, owner, name, self.now)
        assert began == (record.work if did else None)
        if did:
            self.responses[owner, name] = msgspec.structs.replace(record, status="in_progress")

    @rule(owner=OWNERS, name=IDS, output=BODIES, cut=CUTS)
    def finish_response(self, owner, name, output, cut):
        record = self.found(self.responses, owner, name)
        did = bool(record and record.status in OPEN_RESPONSE)
        parts = {"status": "completed", "output_items": output, "tail": b"t", "tokens": output * 2}
        assert self.do(cut, responses.finish, owner, name, self.now, **parts) == did
        if did:
            self.responses[owner, name] = msgspec.structs.replace(record, work=b"", **parts)

    @rule(owner=OWNERS, name=IDS, cut=CUTS)
    def cancel_response(self, owner, name, cut):
        record = self.found(self.responses, owner, name)
        done, did = self.attempt(None if record else NotFound, cut, responses.cancel, owner, name, self.now)
        if done:
            assert did == (record.status in OPEN_RESPONSE)
        if done and did:
            self.responses[owner, name] = msgspec.structs.replace(record, status="cancelled", work=b"")

    @rule(
        owner=OWNERS,
        name=st.sampled_from("abc"),
        max_responses=st.integers(1, 4),
        max_bytes=st.sampled_from([20, 40, 1000]),
    )
    def read_chain(self, owner, name, max_responses, max_bytes):
        expected, links, size, at = None, [], 0, name
        while at is not None and expected is None:
            r = self.found(self.responses, owner, at)
            if r is None:
                expected = NotFound
                break
            link = ChainLink(r.response_id, r.status, r.input_items, r.output_items)
            links.insert(0, link)
            size += len(link.input_items) + len(link.output_items)
            if len(links) > max_responses or size > max_bytes:
                expected = ChainTooLong
            at = r.previous_id
        limits = {"max_responses": max_responses, "max_bytes": max_bytes}
        done, value = self.attempt(expected, 0, responses.chain, owner, name, self.now, **limits)
        if done:
            assert value == links
        elif expected is NotFound:
            assert value.record_id == at

    # --- files ----------------------------------------------------------------------------------------------------

    def unfinished(self, owner, name):
        record = self.found(self.files, owner, name)
        return record if record and record.filename == "unfinished" else None

    @rule(owner=OWNERS, name=IDS, limit=LIMITS, cut=CUTS)
    def begin_file(self, owner, name, limit, cut):
        expected = self.refusal(self.files, owner, name, RECORD_BYTES, limit)
        if expected is Conflict and limit and self.used(owner) + RECORD_BYTES > limit:
            expected = QuotaExceeded
        record = rows.file(name, owner, created_at=self.now, expires_at=self.now + 5.0)
        if self.attempt(expected, cut, files.begin, record, limit_bytes=limit)[0]:
            expires_at = self.now + 3.0
            self.discarded[owner] += self.swept_bytes(self.files, (owner, name))
            self.files[owner, name] = msgspec.structs.replace(record, filename="unfinished", expires_at=expires_at)
            self.contents[owner, name] = b""

    @rule(owner=OWNERS, name=IDS, data=BODIES, limit=LIMITS, cut=CUTS)
    def append(self, owner, name, data, limit, cut):
        record = self.unfinished(owner, name)
        is_full = bool(limit and data and self.used(owner) + len(data) > limit)
        expected = NotFound if record is None else QuotaExceeded if is_full else None
        done, size = self.attempt(expected, cut, files.append, owner, name, self.now, data, limit_bytes=limit)
        if done:
            self.contents[owner, name] += data
            assert size == len(self.contents[owner, name])
            self.files[owner, name] = msgspec.structs.replace(record, expires_at=self.now + 3.0)

    @rule(owner=OWNERS, name=IDS, cut=CUTS)
    def finish_file(self, owner, name, cut):
        record = self.unfinished(owner, name)
        done, whole = self.attempt(None if record else NotFound, cut, files.finish, owner, name, self.now)
        if done:
            size = len(self.contents[owner, name])
            assert whole == rows.file(
                name, owner, created_at=record.created_at, expires_at=record.created_at + 5.0, num_bytes=size
            )
            self.files[owner, name] = whole

    @rule(owner=OWNERS, name=IDS, pieces=st.lists(BODIES, max_size=3))
    def write_file(self, owner, name, pieces):
        """Some steps at once, because each of them needs the ones before."""
        if self.found(self.files, owner, name) is None:
            self.begin_file(owner, name, limit=0, cut=0)
            for piece in pieces:
                self.append(owner, name, piece, limit=0, cut=0)
            self.finish_file(owner, name, cut=0)

    @rule(owner=OWNERS, name=IDS, cut=CUTS)
    def delete_file(self, owner, name, cut):
        expected = None if self.found(self.files, owner, name) else NotFound
        if self.attempt(expected, cut, files.delete, owner, name, self.now)[0]:
            self.discarded[owner] += self.swept_bytes(self.files, (owner, name))
            del self.files[owner, name]

    # --- batches --------------------------------------------------------------------------------------------------

    @rule(owner=OWNERS, name=IDS, life=LIVES, limit=LIMITS, most=st.sampled_from([0, 0, 0, 1]), cut=CUTS)
    def add_batch(self, owner, name, life, limit, cut, most=0):
        times = {"created_at": self.now, "expires_at": None if life is None else self.now + life}
        record = rows.batch(name, owner, metadata=b"{}", input_file_id="a", due_at=self.now + 3.0, **times)
        expected = self.refusal(self.batches, owner, name, RECORD_BYTES + 2, limit)
        others = [b for p, b in self.batches.items() if p[0] == owner and self.found(self.batches, *p)]
        if expected is not Conflict and 0 < most <= sum(b.status in OPEN_BATCH for b in others):
            expected = TooManyOpen
        if self.attempt(expected, cut, batches.add, record, limit_bytes=limit, max_open=most)[0]:
            self.discarded[owner] += self.swept_bytes(self.batches, (owner, name))
            self.batches[owner, name] = record
            self.results[owner, name] = {}
            self.keep_input(owner, record)

    def keep_input(self, owner, record):
        file = self.found(self.files, owner, record.input_file_id)
        until = record.due_at + batches.INPUT_KEPT_S
        if file and file.filename != "unfinished" and file.expires_at is not None and file.expires_at < until:
            self.files[owner, file.file_id] = msgspec.structs.replace(file, expires_at=until)

    def step(self, owner, name, allowed, cut, function, **kwargs):
        """A change of a batch's state, which needs one of `allowed`. Returns whether it happened."""
        record = self.found(self.batches, owner, name)
        expected = NotFound if record is None else None if record.status in allowed else Conflict
        return self.attempt(expected, cut, function, owner, name, self.now, **kwargs)[0]

    def become(self, owner, name, **changes):
        self.batches[owner, name] = msgspec.structs.replace(self.batches[owner, name], **changes)

    @rule(owner=OWNERS, name=IDS, cut=CUTS)
    def start_batch(self, owner, name, cut):
        if self.step(owner, name, ["validating"], cut, batches.start, total=TOTAL):
            self.become(owner, name, status="in_progress", in_progress_at=self.now, total=TOTAL)

    @rule(owner=OWNERS, name=IDS, errors=BODIES, cut=CUTS)
    def fail_batch(self, owner, name, errors, cut):
        if self.step(owner, name, ["validating"], cut, batches.fail, errors=errors):
            self.become(owner, name, status="failed", failed_at=self.now, errors=errors)

    @rule(owner=OWNERS, name=IDS, cut=CUTS)
    def cancel_batch(self, owner, name, cut):
        allowed = ["validating", "in_progress", "cancelling", "cancelled"]
        old = self.found(self.batches, owner, name)
        if self.step(owner, name, allowed, cut, batches.cancel) and old.status in {"validating", "in_progress"}:
            self.become(owner, name, status="cancelling", cancelling_at=self.now)

    @rule(owner=OWNERS, name=IDS, errors=BODIES, ends_as=st.sampled_from(["completed", "expired", "failed"]), cut=CUTS)
    def begin_finalizing(self, owner, name, errors, ends_as, cut):
        allowed, facts = ["validating", "in_progress"], {"ends_as": ends_as, "errors": errors}
        if self.step(owner, name, allowed, cut, batches.begin_finalizing, **facts):
            self.become(owner, name, status="finalizing", finalizing_at=self.now, **facts)

    @rule(owner=OWNERS, name=IDS, life=LIVES, lines=LINES, then=st.sampled_from(["go on", "cancel", "finalize"]))
    def run_batch(self, owner, name, life, lines, then):
        """Some steps at once, because each of them needs the ones before."""
        if self.found(self.batches, owner, name) is None:
            self.add_batch(owner, name, life, limit=0, cut=0)
            self.start_batch(owner, name, cut=0)
            self.add_results(owner, name, lines, limit=0, cut=0)
            if then == "cancel":
                self.cancel_batch(owner, name, cut=0)
            elif then == "finalize":
                self.begin_finalizing(owner, name, b"", "completed", cut=0)

    @rule(owner=OWNERS, name=IDS, lines=LINES, limit=LIMITS, cut=CUTS)
    def add_results(self, owner, name, lines, limit, cut):
        added = [rows.result(line, is_error=is_error) for line, is_error in lines]
        record = self.found(self.batches, owner, name)
        new = {}
        if record:
            for result in added:
                if result.line not in self.results[owner, name]:
                    new.setdefault(result.line, result)
        size = sum(len(r.body) + len(r.custom_id) for r in new.values())
        if record and added and not record.total:
            return  # it has no line that could have a result
        takes = record and record.status in {"in_progress", "cancelling"}
        expected = NotFound if record is None else None if takes else Conflict
        if expected is None and limit and self.used(owner) + size > limit:
            expected = QuotaExceeded
        if self.attempt(expected, cut, batch_results.add_results, owner, name, self.now, added, limit_bytes=limit)[0]:
            self.results[owner, name] |= new
            failed = sum(r.is_error for r in new.values())
            self.become(owner, name, completed=record.completed + len(new) - failed, failed=record.failed + failed)

    @rule(owner=OWNERS, name=IDS, data=st.data())
    def finalize_batch(self, owner, name, data):
        """To its end, cut at each step; other files may have the ids already."""
        record = self.found(self.batches, owner, name)
        ids = {"output_file_id": f"{name}-out-{self.now}", "error_file_id": f"{name}-err-{self.now}"}
        ended = record is not None and record.status not in OPEN_BATCH
        allowed = record is not None and (ended or record.status in {"finalizing", "cancelling"})
        expected = NotFound if record is None else None if allowed else Conflict
        is_more = True
        while is_more:
            done, is_more = self.attempt(
                expected, data.draw(CUTS), batch_results.finalize, owner, name, self.now, **ids
            )
            if not done:
                return
            assert check(self.store) == []
        if not ended:
            self.check_end(owner, name, record, ids)

    def check_end(self, owner, name, record, ids):
        status = "cancelled" if record.status == "cancelling" else record.ends_as
        changes = {"status": status, f"{status}_at": self.now}
        results = self.results[owner, name]
        for kind, is_error in (("output", False), ("error", True)):
            lines = [results[line].body + b"\n" for line in sorted(results) if results[line].is_error == is_error]
            if lines:
                file_id = changes[f"{kind}_file_id"] = ids[f"{kind}_file_id"]
                self.contents[owner, file_id] = b"".join(lines)
                facts = {"purpose": "batch_output", "num_bytes": len(b"".join(lines)), "expires_at": None}
                filename = f"{name}_{kind}.jsonl"
                self.files[owner, file_id] = rows.file(file_id, owner, created_at=self.now, filename=filename, **facts)
        self.become(owner, name, **changes)

    # --- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def counts_are_those_of_a_recount(self):
        assert check(self.store) == []
        for owner in ("", "ann", "someone else"):
            assert used_bytes(self.store, owner) == self.used(owner)

    @invariant()
    def responses_are_those_of_the_model(self):
        found = [(p, r) for p, r in self.responses.items() if self.found(self.responses, *p)]
        for (owner, name), record in found:
            assert rows.get_response(self.store, owner, name, self.now) == record
        waiting = [(r.created_at, *place) for place, r in found if r.status in OPEN_RESPONSE]
        page, listed = None, []
        while page := responses.open_background(self.store, self.now, after=page[-1] if page else None, limit=2):
            listed += [(r.created_at, r.owner, r.response_id) for r in page]
        assert listed == sorted(waiting)

    @invariant()
    def files_are_those_of_the_model(self):
        for owner in ("", "ann"):
            whole = [
                record
                for place, record in self.files.items()
                if place[0] == owner and self.found(self.files, *place) and record.filename != "unfinished"
            ]
            whole.sort(key=lambda record: (record.created_at, record.file_id))
            assert files.list_files(self.store, owner, self.now, order="asc") == whole
            for record in whole:
                content = self.contents[owner, record.file_id]
                for offset, limit in ((0, 100), (5, 9), (11, 1)):
                    part = files.read(self.store, owner, record.file_id, self.now, offset=offset, limit=limit)
                    assert part == content[offset : offset + limit]

    @invariant()
    def batches_are_those_of_the_model(self):
        found = {p: b for p, b in self.batches.items() if self.found(self.batches, *p)}
        for (owner, name), record in found.items():
            assert batches.get(self.store, owner, name, self.now) == record
            done = batch_results.lines_done(self.store, owner, name, self.now, first=1, last=4)
            lines = sorted(self.results[owner, name]) if record.status in OPEN_BATCH else []
            assert done == [line for line in lines if 1 <= line < 4]
        page, listed = None, []
        while page := batches.open_batches(self.store, self.now, after=page[-1] if page else None, limit=2):
            listed += page
        waiting = [record for record in found.values() if record.status in OPEN_BATCH]
        assert listed == sorted(waiting, key=lambda record: (record.created_at, record.owner, record.batch_id))


StoreMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestStore = StoreMachine.TestCase
