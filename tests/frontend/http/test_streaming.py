"""A stream that breaks off anywhere, any number of times, and goes on from its last event: nothing is lost, nothing
comes twice, and the order is kept, whatever the answer is made of and however its tokens arrive."""

import asyncio
from typing import Literal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.frontend.answers import contexts
from tests.frontend.answers.broken_streams import ResumableRequest, Seen, Sequence
from tests.support.demo_tokenizer import EOS, TOKENIZER
from tests.support.effort import examples

# Characters of several bytes, each of its own token, so that breaks fall inside them; and what a stop string may be of.
PIECES = ["one", " two", "🦊", "月", "é", " three", "\n", "x"]
WORDS = [TOKENIZER.encode([piece], add_special_tokens=False)[0] for piece in PIECES]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=8).map(lambda words: [token for word in words for token in word])
STOPS = st.lists(st.sampled_from(["two", "o th", "🦊月", "\n", "xx", "e t"]), max_size=2, unique=True)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(["chat", "completion"]),
    num_prompts=st.integers(1, 2),
    n=st.integers(1, 2),
    stop=STOPS,
    include_usage=st.booleans(),
    num_logprobs=st.sampled_from([0, 1, 3]),
    echo=st.booleans(),
    data=st.data(),
)
def test_a_stream_that_breaks_anywhere(
    kind: Literal["chat", "completion"],
    num_prompts: int,
    n: int,
    stop: list[str],
    include_usage: bool,
    num_logprobs: int,
    echo: bool,
    data: st.DataObject,
):
    asked = {"num_prompts": num_prompts, "n": n, "include_usage": include_usage, "logprobs": num_logprobs}
    context = contexts.context_of(kind, stop=tuple(stop), echo=echo and kind == "completion", **asked)
    prompts = [data.draw(TEXTS.filter(bool)) for _ in range(num_prompts)]
    tokens = [data.draw(TEXTS) for _ in range(num_prompts * n)]
    reasons = [data.draw(st.sampled_from(["stop", "length"])) for _ in tokens]

    def service() -> ResumableRequest:
        sequences = [
            Sequence(
                [*token_ids, *([EOS] if reason == "stop" else [])],
                reason,
                num_logprobs,
                prompts[choice // n],
                0 if choice % n else context.num_prompt_logprobs,
            )
            for choice, (token_ids, reason) in enumerate(zip(tokens, reasons, strict=True))
        ]
        return ResumableRequest(context, sequences, prompts)

    undisturbed = Seen()
    asyncio.run(service().read(undisturbed, [1000], 10**9))
    seen, broken = Seen(), service()
    broken.most_bytes = data.draw(st.sampled_from([0, 700, 2**16]))
    for _ in range(200):
        sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
        asyncio.run(broken.read(seen, sizes, data.draw(st.integers(1, 6))))
        if seen.is_done:
            break
    assert seen.is_done
    assert (seen.texts, seen.ends, seen.usage) == (undisturbed.texts, undisturbed.ends, undisturbed.usage)
    assert seen.logprobs == undisturbed.logprobs
    if num_logprobs and seen.usage is not None:
        num_echoed = n * sum(map(len, prompts)) if context.echo else 0
        assert sum(map(len, seen.logprobs.values())) == num_echoed + seen.usage["completion_tokens"]
    if context.echo:
        for choice, text in seen.texts.items():
            assert text.startswith(b"".join(TOKENIZER.token_bytes[token] for token in prompts[choice // n]).decode())
    assert sorted(seen.openings) == (list(range(len(tokens))) if kind == "chat" else [])
    assert (seen.usage is not None) == include_usage
