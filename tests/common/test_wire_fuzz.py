"""Every message of every direction: as it is, and with its bytes cut, changed, added, or put into other frames."""

import random

import pytest

from common import messages as m
from common.errors import WireError
from common.plan import ExecutorLimits, parse_plan
from common.wire import HEADER, Codec
from tests.support.any_message import AnyMessage

DIRECTIONS = {
    "executor to scheduler": m.ExecutorToScheduler,
    "scheduler to executor": m.SchedulerToExecutor,
    "frontend to core": m.FrontendToCore,
    "core to frontend": m.CoreToFrontend,
}
LIMITS = ExecutorLimits(
    num_blocks=8, block_size=4, max_num_seqs=4, max_batch_tokens=16, max_model_len=32, vocab_size=50, hidden_size=4
)


@pytest.mark.parametrize("direction", DIRECTIONS.values(), ids=DIRECTIONS)
def test_what_is_sent_arrives(direction):
    codec, make = Codec(direction), AnyMessage(direction, random.Random(1))
    seen = set()
    for _ in range(500):
        message = make()
        seen.add(type(message))
        assert codec.decode(codec.encode(message)) == message
    assert seen == set(direction.__args__)


@pytest.mark.parametrize("direction", DIRECTIONS.values(), ids=DIRECTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_damaged_is_refused_or_well_formed(direction, seed):
    rng = random.Random(seed)
    codec, make = Codec(direction), AnyMessage(direction, rng)
    others = [AnyMessage(other, rng) for other in DIRECTIONS.values()]
    refused = 0
    for _ in range(1500):
        payload = bytearray(codec.encode(rng.choice([make, rng.choice(others)])())[1])
        for _ in range(rng.randrange(4)):
            start = rng.randrange(len(payload) + 1)
            payload[start : start + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
        frames = [HEADER, bytes(payload)]
        if rng.random() < 0.1:
            frames.insert(rng.randrange(3), rng.randbytes(rng.randrange(10)))
        try:
            message = codec.decode(frames)
        except WireError:
            refused += 1
            continue
        assert isinstance(message, direction.__args__)
        assert codec.decode(codec.encode(message)) == message or message != message  # NaN is not itself
    assert 300 < refused < 1500


def test_plans_of_random_columns_are_refused():
    make = AnyMessage(m.Plan, random.Random(2))
    for _ in range(2000):
        with pytest.raises(WireError):
            parse_plan(make(), LIMITS)
