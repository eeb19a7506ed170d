"""The outbox against a model that keeps everything, in any order of events."""

from array import array
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.core.requests.journal_records import Ending, Progress
from scheduler_svc.core.requests.outbox import MessageLimits, Outbox
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import SequenceEnd
from tests.core.requests.outputs import came_with, drain, output, prompt_columns, prompt_step, request
from tests.support.effort import examples

PEERS = (b"p", b"q")
LIMITS = {12: [0, 1], 180: [0, 1, 21], 600: [0, 1, 21]}  # bytes of tokens a message, and log-probabilities that fit


@dataclass
class Reader:
    """Who reads a request now, what there was to tell, and what was told; by the sequence's index.

    Tokens are pairs of a token and its model.
    """

    peer: bytes
    sequences: list[Sequence]
    held: bool
    due: list[list[tuple[int, str]]]
    told: list[list[tuple[int, str]]]
    told_prompt: list[bytes] = field(default_factory=lambda: [b"", b""])  # both columns, of sequence 0
    endings: dict[int, str] = field(default_factory=dict)
    models: dict[int, str] = field(default_factory=dict)

    def hear(self, delta):
        i, before = delta.index, self.models.get(delta.index, "")
        assert i not in self.endings, "something comes after the ending"
        assert not delta.model or delta.model != before, "a model is named again"
        self.models[i] = delta.model or before
        tokens = array("i", delta.token_ids).tolist()
        columns = prompt_columns(self.sequences[i])
        if came := (delta.prompt_logprob_ids, delta.prompt_logprobs) != (b"", b""):
            assert not self.told[i], "log-probabilities of the prompt come after tokens"
            self.told_prompt[0] += delta.prompt_logprob_ids
            self.told_prompt[1] += delta.prompt_logprobs
            assert len(self.told_prompt[0]) == len(self.told_prompt[1])
            assert all(whole.startswith(told) for whole, told in zip(columns, self.told_prompt, strict=True))
        assert came or tokens or delta.finish_reason is not None, "nothing is told"
        assert not tokens or i or tuple(self.told_prompt) == columns, "tokens come before all of these"
        assert (delta.logprob_ids, delta.logprobs) == came_with(self.sequences[i], tokens)
        self.told[i] += [(token, self.models[i]) for token in tokens]
        if delta.finish_reason is not None:
            self.endings[i] = delta.finish_reason


@dataclass(eq=False)
class Story:
    """A request: what each of its sequences has said, and how those ended that have."""

    submit: m.Submit
    sequences: list[Sequence]
    reader: Reader | None
    said: list[list[tuple[int, str]]]
    ended: dict[int, str] = field(default_factory=dict)
    num_covered: int = 0  # positions of the prompt, for sequence 0

    @property
    def num_uncovered(self):
        return (self.sequences[0].num_prompt - 1 if self.submit.params.prompt_logprobs else 0) - self.num_covered

    @property
    def covered(self):
        end = 4 * self.submit.params.prompt_logprobs * self.num_covered
        return [column[:end] for column in prompt_columns(self.sequences[0])]

    def progress(self):
        return tuple(map(self.progress_of, self.sequences))

    def progress_of(self, sequence):
        said = self.said[sequence.index]
        tokens, model = [token for token, _ in said], said[-1][1] if said else ""
        ending = Ending(self.ended[sequence.index]) if sequence.index in self.ended else None
        covered = (b"", b"") if sequence.index else self.covered
        return Progress(array("i", tokens).tobytes(), model, None, ending, *came_with(sequence, tokens), *covered)

    def is_waiting(self, i):
        """Whether the reader has yet to be told something of this sequence."""
        reader = self.reader
        if reader.held and i not in self.ended:
            return False
        is_behind = reader.told[i] != reader.due[i] or (i == 0 and reader.told_prompt != self.covered)
        return is_behind or (i in self.ended and i not in reader.endings)


class OutboxMachine(RuleBasedStateMachine):
    """Any order of events, against a model that keeps everything."""

    def __init__(self):
        super().__init__()
        self.stories = {}
        self.refused = []  # (peer, request) whose refusal was not told yet
        self.accepted = {peer: [] for peer in PEERS}  # requests of which that was not told yet

    @initialize(max_bytes=st.sampled_from(sorted(LIMITS)))
    def limit(self, max_bytes):
        """So low that most readers need several messages."""
        self.logprobs = LIMITS[max_bytes]
        self.outbox = Outbox(MessageLimits(max_bytes, streams=2, accepted=2))

    def going(self):
        return [(story, s) for story in self.stories.values() for s in story.sequences if s.index not in story.ended]

    def speaking(self):
        return [(story, s) for story, s in self.going() if s.index or not story.num_uncovered]

    def prompted(self):
        return [story for story, s in self.going() if s.index == 0 and story.num_uncovered]

    @precondition(lambda self: len(self.stories) < 3)
    @rule(peer=st.sampled_from(PEERS), n=st.integers(1, 2), stream=st.booleans(), data=st.data())
    def open(self, peer, n, stream, data):
        logprobs = data.draw(st.sampled_from(self.logprobs))
        prompt_logprobs = data.draw(st.sampled_from([0, *self.logprobs]))
        name, few = f"r{len(self.stories)}", {"prompt_logprobs": prompt_logprobs, "num_prompt": 8}
        submit, sequences = request(name, n, stream=stream, logprobs=logprobs, **few)
        reader = Reader(peer, sequences, not stream, [[] for _ in sequences], [[] for _ in sequences])
        self.stories[submit.request_id] = Story(submit, sequences, reader, [[] for _ in sequences])
        self.outbox.open(peer, submit, sequences)
        if stream:
            self.accepted[peer].append(submit.request_id)
            self.outbox.accepted(peer, submit.request_id)

    @precondition(lambda self: self.prompted())
    @rule(data=st.data())
    def push_prompt(self, data):
        story = data.draw(st.sampled_from(self.prompted()))
        first = story.num_covered
        story.num_covered += data.draw(st.integers(1, story.num_uncovered))
        self.outbox.push(prompt_step(story.sequences[0], first, story.num_covered))

    @precondition(lambda self: self.speaking())
    @rule(
        data=st.data(),
        model=st.sampled_from(["one", "one", "one", "two"]),
        num_steps=st.sampled_from([1, 1, 2, 17]),
        ends=st.sampled_from([False, False, False, True]),
    )
    def push(self, data, model, num_steps, ends):
        chosen = data.draw(st.lists(st.sampled_from(self.speaking()), unique_by=lambda pair: id(pair[1]), min_size=1))
        for step in range(num_steps):
            self.push_one(chosen, model, ends=ends and step == num_steps - 1)

    def push_one(self, chosen, model, *, ends):
        tokens = [len(story.said[s.index]) for story, s in chosen]
        for (story, s), token in zip(chosen, tokens, strict=True):
            story.said[s.index].append((token, model))
            if story.reader is not None:
                story.reader.due[s.index].append((token, model))
        ending = chosen[:1] if ends else []
        for story, s in ending:
            story.ended[s.index] = "length"
        self.outbox.push(output([s for _, s in chosen], tokens, [s for _, s in ending], model))

    @precondition(lambda self: self.going())
    @rule(data=st.data())
    def cancel(self, data):
        story, sequence = data.draw(st.sampled_from(self.going()))
        story.ended[sequence.index] = "cancelled"
        self.outbox.end(SequenceEnd(sequence, "cancelled"))

    @precondition(lambda self: self.stories)
    @rule(data=st.data(), peer=st.sampled_from(PEERS))
    def attach(self, data, peer):
        story = self.stories[data.draw(st.sampled_from(sorted(self.stories)))]
        former = story.reader
        if former is not None and former.peer != peer and len(former.endings) < story.submit.n:
            self.refused.append((former.peer, story.submit.request_id))
        due = [[(token, said[-1][1]) for token, _ in said] for said in story.said]
        story.reader = Reader(peer, story.sequences, False, due, [[] for _ in due])
        self.outbox.attach(peer, story.sequences, story.progress())

    @precondition(lambda self: self.stories)
    @rule(data=st.data())
    def close(self, data):
        story = self.stories[data.draw(st.sampled_from(sorted(self.stories)))]
        story.reader = None
        self.outbox.close(story.sequences)

    @rule(peer=st.sampled_from(PEERS))
    def refuse(self, peer):
        request_id = f"refused {len(self.stories)} {len(self.refused)}"
        self.refused.append((peer, request_id))
        self.outbox.refuse(peer, request_id, RequestRejected("no", "queue_full"))

    @rule(peer=st.sampled_from(PEERS))
    def send(self, peer):
        self.hear(peer, drain(self.outbox, peer))

    @rule(peer=st.sampled_from(PEERS))
    def send_one(self, peer):
        """The frontend takes one message, and what comes now is behind the rest."""
        if (message := self.outbox.peek(peer)) is not None:
            self.outbox.sent(peer)
            self.hear(peer, [message])

    def hear(self, peer, messages):
        for message in messages:
            if isinstance(message, m.Accepted):
                num_told = len(message.request_ids)
                assert num_told in (1, 2)
                told, self.accepted[peer] = self.accepted[peer][:num_told], self.accepted[peer][num_told:]
                assert message.request_ids == tuple(told)
            else:
                self.hear_outputs(peer, message)

    def hear_outputs(self, peer, outputs):
        for delta in outputs.deltas:
            assert delta.request_id not in self.accepted[peer], "it is told of before it is accepted"
            if (peer, delta.request_id) in self.refused and delta.code:
                self.refused.remove((peer, delta.request_id))
                continue
            reader = self.stories[delta.request_id].reader
            assert reader is not None, "no frontend reads it any more"
            assert reader.peer == peer, "another frontend reads it"
            reader.hear(delta)

    @rule(peer=st.sampled_from(PEERS))
    def forget(self, peer):
        for story in self.stories.values():
            if story.reader is not None and story.reader.peer == peer:
                story.reader = None
        self.refused = [each for each in self.refused if each[0] != peer]
        self.accepted[peer] = []
        self.outbox.forget(peer)

    @invariant()
    def something_waits_for_those_who_have_not_been_told_everything(self):
        waiting = {peer for peer, _ in self.refused} | {peer for peer in PEERS if self.accepted[peer]}
        for story in self.stories.values():
            if story.reader is not None and any(map(story.is_waiting, range(story.submit.n))):
                waiting.add(story.reader.peer)
        assert sorted(self.outbox.peers()) == sorted(waiting)

    def teardown(self):
        for peer in PEERS:
            self.send(peer)
        assert not self.refused
        assert not any(self.accepted.values())
        for story in self.stories.values():
            if (reader := story.reader) is not None:
                told = {i: said for i, said in enumerate(reader.told) if i in story.ended or not reader.held}
                assert told == {i: reader.due[i] for i in told}
                assert 0 not in told or reader.told_prompt == story.covered
                assert reader.endings == story.ended


TestOutboxMachine = OutboxMachine.TestCase
TestOutboxMachine.settings = settings(max_examples=examples(80), stateful_step_count=40)
