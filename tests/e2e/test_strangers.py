"""Strangers shout at both sockets of a real scheduler while 64 streams go on."""

import asyncio
import random
import time

import openai
import pytest
import zmq

from common import messages as m
from common.wire import HEADER, Codec
from tests.e2e.conftest import running_fleet
from tests.e2e.streams import keep_streaming
from tests.support.hello import hello

pytestmark = pytest.mark.chaos

SHOUTING_S = 15


async def text_of(client, request):
    stream = await client.completions.create(**request, stream=True)
    return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])


def test_64_streams_while_strangers_shout_at_both_sockets(tmp_path):
    """Random bytes, wrong versions, and valid messages with impossible ids."""
    front = f"ipc://{tmp_path}/front"
    with running_fleet(tmp_path, scheduler_options=("--frontend-endpoint", front)) as fleet:
        endpoints = (f"tcp://127.0.0.1:{fleet.spec.executor_port}", front)

        async def shout():
            with zmq.Context() as context:
                rng = random.Random(1)
                deadline = time.monotonic() + SHOUTING_S
                while time.monotonic() < deadline:
                    for endpoint in endpoints:
                        with context.socket(zmq.DEALER) as stranger:
                            stranger.linger = 100
                            stranger.connect(endpoint)
                            for frames in nonsense(rng):
                                stranger.send_multipart(frames)
                            await asyncio.sleep(0.05)

        async def run():
            url = f"{fleet.spec.url}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0, timeout=300) as client:
                return await keep_streaming(lambda request: text_of(client, request), shout)

        print(f"{asyncio.run(run())} streams ended as if nothing had happened")


def nonsense(rng):
    encode = Codec(m.ExecutorToScheduler).encode
    epoch = rng.choice([1, 2**53, int(time.time() * 1000)])
    for _ in range(20):
        yield [rng.randbytes(rng.randrange(50)) for _ in range(rng.randrange(1, 4))]
        yield [HEADER, rng.randbytes(rng.randrange(200))]
        yield [b"baton/1", rng.randbytes(10)]
    yield encode(m.StepResult(epoch=epoch, step=rng.randrange(2**53), token_ids=rng.randbytes(400), compute_us=1))
    yield encode(m.StepFailed(epoch=epoch, step=1, error="x" * 4000))
    yield encode(m.Leaving(epoch=epoch))
    yield encode(m.Cancel(request_id="nobody"))
    yield encode(m.Submit(request_id="x", prompt=rng.randbytes(401), params=m.SamplingParams(max_tokens=9)))
    yield encode(hello("impostor", fingerprint="not the model", num_blocks=2**31 - 1))
    yield [HEADER, rng.randbytes(1 << 18)]
