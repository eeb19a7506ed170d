"""The group commit against a simulated disk that is slow, full or gone, in any order of events."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler_svc.core.requests.group_commit import RETRY_AFTER_S, STUCK_AFTER_S, GroupCommit, JournalState
from scheduler_svc.core.requests.journal_records import Ending, encode
from tests.support.disk import Disk, end_record, request_record, step_record
from tests.support.effort import examples


@dataclass(frozen=True)
class Announcement:
    """Told when these tokens of these requests may be known."""

    serial: int
    facts: dict[int, tuple[int, bool]]


class GroupCommitMachine(RuleBasedStateMachine):
    """Any order of events. `promised` is what was told while the journal was OK."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.group_commit, self.disk = GroupCommit(JournalState.OK, first_number=3, max_log_bytes=300), Disk()
        self.written = []  # handed to the disk, which has not answered yet
        self.truth, self.promised = {}, {}
        self.num_added = self.num_told = 0
        self.last_number = 2
        self.followed = set()  # what the journal has a record of, or will have with the next batches

    @initialize(num_earlier=st.integers(0, 6), limits=st.tuples(*[st.sampled_from([1, 2, 128])] * 2))
    def start(self, num_earlier, limits):
        """An earlier life has left some requests, with a token each."""
        self.group_commit.max_records, self.group_commit.max_requests = limits
        if num_earlier:
            arrivals = range(-num_earlier, 0)
            rows = [*map(request_record, arrivals), step_record([*arrivals], 1, [0] * num_earlier)]
            self.disk.rows = {1: encode([request_record(77)]), 2: encode(rows)}
            self.truth = {arrival: ([1], False) for arrival in arrivals}
            self.promised = dict.fromkeys(arrivals, (1, False))
            self.followed = {*arrivals}
            self.hand_over(self.group_commit.begin_anew(self.everything(), self.now))

    def everything(self):
        """A journal that is begun anew after a failure follows a request from its record on, and no token before."""
        if self.group_commit.state is JournalState.FAILED:
            self.followed.clear()
        for arrival in [*self.truth]:
            if arrival in self.truth:
                self.followed.add(arrival)
                yield self.whole(arrival)

    def add(self, records, arrivals):
        facts = {a: (len(self.truth[a][0]), self.truth[a][1]) for a in arrivals}
        self.num_added += 1
        self.told(self.group_commit.add(records, [Announcement(self.num_added, facts)], self.now))

    def told(self, announcements):
        for announcement in announcements:
            self.num_told += 1
            assert announcement.serial == self.num_told, "each once, in the order in which they went in"
            if self.group_commit.state is JournalState.OK:
                self.promised |= {a: fact for a, fact in announcement.facts.items() if a in self.truth}

    def hand_over(self, batch):
        assert batch.number == self.last_number + 1
        assert batch.keep_from <= batch.number
        self.last_number = batch.number
        self.written.append(batch)

    def going(self):
        return [arrival for arrival, (_, ended) in self.truth.items() if not ended]

    @rule()
    def accept(self):
        arrival = self.num_added
        self.truth[arrival] = ([], False)
        self.followed.add(arrival)
        self.add([request_record(arrival)], [arrival])

    @precondition(lambda self: self.going())
    @rule(data=st.data(), token=st.integers(0, 99))
    def step(self, data, token):
        arrivals = data.draw(st.lists(st.sampled_from(self.going()), unique=True, min_size=1))
        followed = [arrival for arrival in arrivals if arrival in self.followed]
        positions = [len(self.truth[arrival][0]) for arrival in followed]
        for arrival in arrivals:
            self.truth[arrival][0].append(token)
        self.add([step_record(followed, token, positions)] if self.group_commit.is_recording else [], arrivals)

    @precondition(lambda self: self.going())
    @rule(data=st.data())
    def end(self, data):
        arrival = data.draw(st.sampled_from(self.going()))
        self.truth[arrival] = (self.truth[arrival][0], True)
        self.add([end_record(arrival, len(self.truth[arrival][0]))] if arrival in self.followed else [], [arrival])

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def attach(self, data):
        self.add([], [data.draw(st.sampled_from(sorted(self.truth)))])

    @precondition(lambda self: len(self.going()) < len(self.truth))
    @rule(data=st.data())
    def let_go(self, data):
        arrival = data.draw(st.sampled_from(sorted(self.truth.keys() - set(self.going()))))
        del self.truth[arrival]
        self.promised.pop(arrival, None)
        self.group_commit.let_go(f"r{arrival}")

    @rule()
    def write(self):
        if self.group_commit.may_begin_anew(self.now):
            self.hand_over(self.group_commit.begin_anew(self.everything(), self.now))
        elif (batch := self.group_commit.next_batch(self.now)) is not None:
            self.hand_over(batch)

    @rule()
    def carry_forward(self):
        if (request_id := self.group_commit.overgrown()) is not None:
            self.add([self.whole(int(request_id[1:]))], [])

    @precondition(lambda self: self.written)
    @rule(outcome=st.sampled_from(["saved", "saved", "saved", "failed", "failed, but written"]))
    def disk_answers(self, outcome):
        batch = self.written.pop(0)
        if outcome != "failed":
            self.disk.write(batch)
        if outcome == "saved":
            self.told(self.group_commit.saved(batch.number))
        else:
            self.told(self.group_commit.failed(batch.number, self.now))

    @rule()
    def lose(self):
        """The file is gone, and all in it; what is under way goes nowhere."""
        self.disk.rows, self.promised = {}, {}
        self.told(self.group_commit.lost(self.now))
        for batch in self.written:
            self.told(self.group_commit.failed(batch.number, self.now))
        self.written.clear()

    @rule(seconds=st.sampled_from([0.001, 0.1, STUCK_AFTER_S + 0.1, RETRY_AFTER_S + 0.1]))
    def wait(self, seconds):
        self.now += seconds
        self.told(self.group_commit.tick(self.now))

    @invariant()
    def what_was_told_survives(self):
        found = self.disk.read()
        for arrival, (num_tokens, ended) in self.promised.items():
            tokens, has_ended = found[arrival]
            assert len(tokens) >= num_tokens
            assert has_ended >= ended
        for arrival in found.keys() & self.truth.keys():
            tokens = found[arrival][0]
            assert tokens == self.truth[arrival][0][: len(tokens)], "what is on disk has a gap"

    @invariant()
    def no_announcement_waits_for_a_journal_that_does_not_work(self):
        """Only while it catches up with what was told meanwhile, when its disk has just worked again."""
        if self.group_commit.is_settled:
            assert self.num_told == self.num_added
        elif self.group_commit.state is JournalState.FAILED:
            assert self.written or self.group_commit.due_in_s(self.now) is not None, "it waits for a write, which comes"

    def whole(self, arrival):
        tokens, ended = self.truth[arrival]
        return request_record(arrival, tokens, Ending("stop") if ended else None)

    def teardown(self):
        """Once the disk works everything is told, and on disk."""
        for _ in range(5 + len(self.truth) + self.num_added):
            while self.written:
                self.disk_answers("saved")
            self.wait(RETRY_AFTER_S + 0.1)
            self.write()
        assert self.disk.rows.keys().isdisjoint({1, 2}), "a journal begun anew needs nothing that was before"
        assert self.group_commit.state is JournalState.OK
        assert self.num_told == self.num_added
        found = self.disk.read()
        assert {arrival: found[arrival] for arrival in self.truth} == self.truth


TestGroupCommitMachine = GroupCommitMachine.TestCase
TestGroupCommitMachine.settings = settings(max_examples=examples(60), stateful_step_count=40)
