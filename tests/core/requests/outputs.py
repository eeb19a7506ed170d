"""Requests, the output of steps for them, in which each token has log-probabilities of its own, and what waits for a
reader of it.
"""

import random
from array import array

import numpy as np

from common import messages as m
from common.wire import int32_array
from scheduler_svc.core.sequence import new_sequences
from scheduler_svc.core.step_output import PromptLogprobs, SequenceEnd, StepLogprobs, StepOutput


def request(request_id, n=1, *, stream=True, logprobs=0, prompt_logprobs=0, num_prompt=3):
    """A Submit and its sequences."""
    prompt = array("i", range(1, num_prompt + 1)).tobytes()
    params = m.SamplingParams(max_tokens=99, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    submit = m.Submit(request_id=request_id, prompt=prompt, params=params, n=n, stream=stream)
    return submit, new_sequences(submit, int32_array("prompt", prompt), 1, 0, None)


def drain(outbox, peer):
    """All that waits for a peer."""
    messages = []
    while (message := outbox.peek(peer)) is not None:
        assert outbox.peek(peer) == message, "it stays until it is sent"
        messages.append(message)
        outbox.sent(peer)
    return messages


def came_with(sequence, tokens):
    """What the columns of log-probabilities say of these tokens of a sequence; of each token something else."""
    ids, values = b"", b""
    for token in tokens:
        rng = random.Random(f"{sequence.request_id} {sequence.index} {token}")
        ids += rng.randbytes(4 * sequence.params.logprobs)
        values += rng.randbytes(4 * sequence.params.logprobs)
    return ids, values


def prompt_columns(sequence):
    """Log-probabilities of all its prompt."""
    rng, num_bytes = random.Random(sequence.request_id), 4 * sequence.num_prompt_logprobs * (sequence.num_prompt - 1)
    return rng.randbytes(num_bytes), rng.randbytes(num_bytes)


def prompt_step(sequence, first, end):
    """A step that gives the log-probabilities at these positions of a sequence's prompt."""
    width = 4 * sequence.num_prompt_logprobs
    ids, values = (column[first * width : end * width] for column in prompt_columns(sequence))
    return StepOutput(model="m", prompt_logprobs=[PromptLogprobs(sequence, first, ids, values)])


def output(sequences, tokens, ends=(), model="m"):
    """A step; tokens of requests that asked for log-probabilities come with some."""
    counts = np.array([sequence.params.logprobs for sequence in sequences], np.int32)
    came = [came_with(sequence, [token]) for sequence, token in zip(sequences, tokens, strict=True)]
    ids, values = (b"".join(column) for column in zip(*came, strict=True))
    logprobs = StepLogprobs(counts, np.frombuffer(ids, np.int32), np.frombuffer(values, np.float32))
    ended = [SequenceEnd(s, "length") for s in ends]
    return StepOutput(sequences, tokens, [], ended, model, logprobs=logprobs if counts.any() else None)
