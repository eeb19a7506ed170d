"""Log-probabilities that a client was told survive the scheduler: each comes once, in order, beside its token; those of
the prompt come before the first one.

The core is whole; its executors are played here, so that each token comes with what the test says.
"""

import random
from array import array

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common import messages as m
from scheduler_svc.core.requests.group_commit import GATHER_S, BatchSaved, JournalState
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.sequence import NO_POSITION, Earlier, Generated
from scheduler_svc.core.step_output import PromptLogprobs, StepLogprobs, StepOutput
from tests.support.effort import examples
from tests.support.service import Service, restart

PROMPT = array("i", [5, 6, 7, 8]).tobytes()
NUM_POSITIONS = 3  # of the prompt, that tell log-probabilities
MAX_TOKENS = 6
PEERS = (b"p", b"q")


def submit(request_id, logprobs, n=1, *, stream=True, prompt_logprobs=0):
    params = m.SamplingParams(max_tokens=MAX_TOKENS, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    return m.Submit(request_id=request_id, prompt=PROMPT, params=params, n=n, stream=stream, is_resumable=True)


def drawn(request_id, index, position, logprobs):
    """What a step gives: a token, and log-probabilities. As with seeds, a token that is drawn again is the same."""
    rng = random.Random(f"{request_id} {index} {position}")
    token = rng.getrandbits(16)
    values = [float(np.float32(-rng.expovariate(1.0))) for _ in range(logprobs)]
    return token, [(token if i == 0 else rng.getrandbits(16), value) for i, value in enumerate(values)]


def expected(request_id, index, logprobs, num_tokens):
    """Tokens, and what came with them."""
    each = [drawn(request_id, index, position, logprobs) for position in range(num_tokens)]
    return [token for token, _ in each], [pair for _, pairs in each for pair in pairs]


def of_prompt(request_id, width, first, end):
    """Tokens and log-probabilities that these positions of a prompt tell."""
    told = [drawn(request_id, "prompt", position, width)[1] for position in range(first, end)]
    return [pair for pairs in told for pair in pairs]


def as_bytes(pairs):
    """Both columns."""
    return array("i", [token for token, _ in pairs]).tobytes(), array("f", [value for _, value in pairs]).tobytes()


def generated(request_id, index, logprobs, num_tokens, prompt=()):
    tokens, pairs = expected(request_id, index, logprobs, num_tokens)
    return Generated(array("i", tokens).tobytes(), *as_bytes(pairs), *as_bytes(prompt))


def step(service, sequences, model="m"):
    """Each of these gets its next token, as `Scheduler.commit` gives it."""
    positions = [sequence.num_output for sequence in sequences]
    counts = [sequence.params.logprobs for sequence in sequences]
    tokens, ids, values, ends = [], array("i"), array("f"), []
    for sequence, position, count in zip(sequences, positions, counts, strict=True):
        token, pairs = drawn(sequence.request_id, sequence.index, position, count)
        tokens.append(token)
        sequence.tokens.append(token)
        sequence.model = model
        for token_id, value in pairs:
            sequence.logprob_ids.append(token_id)
            sequence.logprobs.append(value)
            ids.append(token_id)
            values.append(value)
        if sequence.num_output == MAX_TOKENS:
            ends.append(service.core.scheduler.sequences.end(sequence, "length"))
    columns = (np.array(counts, np.int32), np.array(ids, np.int32), np.array(values, np.float32))
    output = StepOutput(
        sequences=sequences,
        tokens=tokens,
        firsts=[s for s, position in zip(sequences, positions, strict=True) if position == 0],
        ends=ends,
        model=model,
        positions=np.array(positions, np.int32),
        logprobs=StepLogprobs(*columns) if any(counts) else None,
    )
    service.core.requests.stepped(output, service.now)
    service.flush()


def prompt_step(service, sequence, end):
    """The positions before `end` that are not covered yet tell their log-probabilities."""
    first = sequence.num_covered
    ids, values = as_bytes(of_prompt(sequence.request_id, sequence.num_prompt_logprobs, first, end))
    sequence.prompt_logprob_ids.frombytes(ids)
    sequence.prompt_logprobs.frombytes(values)
    output = StepOutput(model="m", prompt_logprobs=[PromptLogprobs(sequence, first, ids, values)])
    service.core.requests.stepped(output, service.now)
    service.flush()


def sequences_of(service, request_id):
    return service.core.requests.table.find(request_id).sequences


@pytest.mark.parametrize("logprobs", [0, 1, 21])
@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_restored_sequence_has_its_tokens_and_log_probabilities_again(logprobs, num_steps):
    scheduler, before = Scheduler(), [generated("a", i, logprobs, num_steps + i) for i in range(2)]
    restored = scheduler.restore(submit("a", logprobs, n=2), 3, [*map(Earlier, before)], None)
    assert [scheduler.output_of(sequence) for sequence in restored] == before


@pytest.mark.parametrize("logprobs", [0, 1, 21])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_comes_back_after_a_restart_gets_all_of_them_once(logprobs, stream):
    """Three tokens are on disk, and a fourth is lost with the scheduler and drawn again."""
    service = Service(JournalState.OK)
    service.say(submit("a", logprobs, stream=stream), b"p")
    rows = [service.write()]
    for _ in range(3):
        step(service, sequences_of(service, "a"))
    rows.append(service.write())
    step(service, sequences_of(service, "a"))
    told = service.tokens.get((b"p", "a", 0), []), service.logprobs.get((b"p", "a", 0), [])
    assert told == expected("a", 0, logprobs, 3 if stream else 0)

    service, batch = restart(rows)
    service.say(m.Attach(request_id="a"), b"q")
    for _ in range(3):
        step(service, sequences_of(service, "a"))
    rows = [batch.payload, service.write()]
    service.flush()
    assert service.endings == {(b"q", "a", 0): "length"}
    assert (service.tokens[b"q", "a", 0], service.logprobs[b"q", "a", 0]) == expected("a", 0, logprobs, MAX_TOKENS)

    service, _ = restart(rows)
    service.say(m.FrontendHello(pid=1), b"p")
    service.say(m.Attach(request_id="a"), b"p")
    assert (service.tokens[b"p", "a", 0], service.logprobs[b"p", "a", 0]) == expected("a", 0, logprobs, MAX_TOKENS)


class RestartMachine(RuleBasedStateMachine):
    """Requests, steps, writes, readers that change, and schedulers that die, in any order."""

    def __init__(self):
        super().__init__()
        self.service = Service(JournalState.OK)
        self.rows = []
        self.submits = {}
        self.told = {}  # by sequence: tokens that any client has heard of
        self.told_of_prompt = {}  # by request: log-probabilities, likewise

    @initialize()
    def begin(self):
        for peer in PEERS:
            self.service.say(m.FrontendHello(pid=1), peer)

    def going(self):
        requests = [request for name in self.submits if (request := self.service.core.requests.table.find(name))]
        both = [
            (s, ending) for request in requests for s, ending in zip(request.sequences, request.endings, strict=True)
        ]
        return [sequence for sequence, ending in both if ending is None]

    def speaking(self):
        return [s for s in self.going() if s.wanted_from(0) == NO_POSITION]

    def prompted(self):
        return [s for s in self.going() if s.wanted_from(0) != NO_POSITION]

    @precondition(lambda self: len(self.submits) < 4)
    @rule(
        peer=st.sampled_from(PEERS),
        logprobs=st.sampled_from([0, 1, 21]),
        prompt_logprobs=st.sampled_from([0, 1, 3]),
        n=st.integers(1, 2),
        stream=st.booleans(),
    )
    def open(self, peer, logprobs, prompt_logprobs, n, stream):
        new = submit(f"r{len(self.submits)}", logprobs, n, stream=stream, prompt_logprobs=prompt_logprobs)
        self.submits[new.request_id] = new
        self.service.say(new, peer)

    @precondition(lambda self: self.prompted())
    @rule(data=st.data())
    def prompt_step(self, data):
        sequence = data.draw(st.sampled_from(self.prompted()))
        prompt_step(self.service, sequence, data.draw(st.integers(sequence.num_covered + 1, NUM_POSITIONS)))

    @precondition(lambda self: self.speaking())
    @rule(data=st.data(), model=st.sampled_from(["one", "one", "two"]))
    def step(self, data, model):
        going = self.speaking()
        chosen = data.draw(st.lists(st.sampled_from(range(len(going))), unique=True, min_size=1))
        step(self.service, [going[i] for i in chosen], model)

    @rule()
    def write(self):
        self.save(is_told=True)

    @rule()
    def begin_the_journal_anew(self):
        self.take(self.service.core.new_journal(self.service.now))

    @rule(name=st.integers(0, 3), peer=st.sampled_from(PEERS))
    def attach(self, name, peer):
        self.service.say(m.Attach(request_id=f"r{name}"), peer)

    @rule(is_written=st.booleans())
    def die(self, is_written):
        """Also with a batch on disk that the core did not hear of."""
        if is_written:
            self.save(is_told=False)
        self.service, batch = restart(self.rows)
        self.rows = [batch.payload]
        for name, new in list(self.submits.items()):
            if self.service.core.requests.table.find(name) is None:
                assert not any(self.told.get((name, i)) for i in range(new.n)), "a client was told of it"
                del self.submits[name]
        for sequence in [s for name in self.submits for s in sequences_of(self.service, name)]:
            assert sequence.num_output >= self.told.get((sequence.request_id, sequence.index), 0)
            of_prompt = 0 if sequence.index else self.told_of_prompt.get(sequence.request_id, 0)
            assert len(sequence.prompt_logprobs) >= of_prompt, "it would be computed again"
        self.begin()

    def save(self, *, is_told):
        self.service.now += GATHER_S
        if (batch := self.service.core.next_batch(self.service.now)) is not None:
            self.take(batch, is_told=is_told)

    def take(self, batch, *, is_told=True):
        self.rows = [*([] if batch.completes else self.rows), batch.payload]
        if is_told:
            self.service.do(self.service.core.batch_written(BatchSaved(batch.number), self.service.now))
            self.service.flush()

    @invariant()
    def what_is_told_is_what_was_computed(self):
        for key, tokens in self.service.tokens.items():
            _, name, index = key
            self.told[name, index] = max(self.told.get((name, index), 0), len(tokens))
            logprobs = self.submits[name].params.logprobs
            assert (tokens, self.service.logprobs[key]) == expected(name, index, logprobs, len(tokens))
            told, width = self.service.prompt_logprobs[key], 0 if index else self.submits[name].params.prompt_logprobs
            whole = of_prompt(name, width, 0, NUM_POSITIONS)
            assert told == (whole if tokens else whole[: len(told)])
            if index == 0:
                self.told_of_prompt[name] = max(self.told_of_prompt.get(name, 0), len(told))

    @invariant()
    def what_is_known_is_what_was_computed(self):
        for name, new in self.submits.items():
            for sequence in sequences_of(self.service, name):
                output = self.service.core.scheduler.output_of(sequence)
                prompt = of_prompt(name, sequence.num_prompt_logprobs, 0, sequence.num_covered)
                assert output == generated(name, sequence.index, new.params.logprobs, sequence.num_output, prompt)

    def teardown(self):
        """A reader of everything gets everything."""
        service = self.service
        service.say(m.FrontendHello(pid=1), b"last")
        for name in self.submits:
            service.say(m.Attach(request_id=name), b"last")
        self.save(is_told=True)
        for name, new in self.submits.items():
            for sequence in sequences_of(service, name):
                key = (b"last", name, sequence.index)
                found = service.tokens.get(key, []), service.logprobs.get(key, [])
                assert found == expected(name, sequence.index, new.params.logprobs, sequence.num_output)
                prompt = of_prompt(name, sequence.num_prompt_logprobs, 0, sequence.num_covered)
                assert service.prompt_logprobs.get(key, []) == prompt


TestRestartMachine = RestartMachine.TestCase
TestRestartMachine.settings = settings(max_examples=examples(100), stateful_step_count=40)
