"""Requests to measure with: nano-vllm's bench workload, and traces of real traffic. All token ids are below 10,001."""

import csv
import itertools
import json
import random
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

MAX_TOKEN_ID = 10_000
MOONCAKE_BLOCK = 512  # tokens behind one of a Mooncake trace's hash_ids
CONVERSATION_TURNS = 5  # in `sessions`, on average


@dataclass(frozen=True)
class WorkloadRequest:
    """One request.

    Attributes:
        arrival_s: when it arrives, in seconds.
        prompt: int32 [tokens].
        num_output: tokens it generates.
        max_tokens: it asks for; 0 for those it generates.
        ends_by: `length` has no stop token; `stop` ends with one; `cancel` has one too, and is cancelled before it
            comes, as its frontend found a stop string or its client hung up.
    """

    arrival_s: float
    prompt: npt.NDArray[np.int32]
    num_output: int
    max_tokens: int = 0
    ends_by: Literal["length", "stop", "cancel"] = "length"


def nano(num_seqs: int, shared_prefix: int = 0) -> list[WorkloadRequest]:
    """nano-vllm's bench.py: prompts and answers of 100 to 1,024 tokens; all requests arrive at once.

    Args:
        shared_prefix: number of tokens in front of every prompt, which are the same for all.
    """
    rng = random.Random(0)
    prompts = [[rng.randint(0, MAX_TOKEN_ID) for _ in range(rng.randint(100, 1024))] for _ in range(num_seqs)]
    outputs = [rng.randint(100, 1024) for _ in range(num_seqs)]
    prefix = [rng.randint(0, MAX_TOKEN_ID) for _ in range(shared_prefix)]
    return [
        WorkloadRequest(0.0, np.array(prefix + prompt, np.int32), count)
        for prompt, count in zip(prompts, outputs, strict=True)
    ]


def upper_halves(num_seqs: int, max_prompt: int, max_output: int) -> list[WorkloadRequest]:
    """Prompts and answers between half of the largest length and all of it; all requests arrive at once."""
    rng = random.Random(0)
    lengths = [[rng.randint(-(-most // 2), most) for most in (max_prompt, max_output)] for _ in range(num_seqs)]
    return [
        WorkloadRequest(0.0, np.array([rng.randint(0, MAX_TOKEN_ID) for _ in range(prompt)], np.int32), count)
        for prompt, count in lengths
    ]


def azure(path: Path, num_seqs: int | None) -> list[WorkloadRequest]:
    """A trace in the format of Azure's LLM inference traces: TIMESTAMP, ContextTokens, GeneratedTokens.

    The trace has no tokens: prompts are random, so nothing is shared.
    """
    rng = np.random.default_rng(0)
    with path.open(newline="") as file:
        rows = list(itertools.islice(csv.DictReader(file), num_seqs))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return [
        WorkloadRequest(
            (time - times[0]).total_seconds(),
            rng.integers(0, MAX_TOKEN_ID + 1, max(1, int(row["ContextTokens"])), np.int32),
            max(1, int(row["GeneratedTokens"])),
        )
        for time, row in zip(times, rows, strict=True)
    ]


def mooncake(path: Path, num_seqs: int | None) -> list[WorkloadRequest]:
    """A trace in Mooncake's format: timestamp in ms, input_length, output_length, hash_ids of 512-token prefix blocks.

    Equal hash ids stand for equal tokens.
    """
    with path.open() as file:
        return [_of_row(json.loads(line)) for line in itertools.islice(file, num_seqs)]


def sessions(path: Path, num_seqs: int | None) -> list[WorkloadRequest]:
    """Conversations of about five turns, made from the arrivals and lengths of a trace in Azure's format.

    Synthetic: each request continues a random open conversation (its prompt starts with the whole prompt of the turn
    before), or opens a conversation after one of four system prompts of 512 tokens. Prompts are in Mooncake's blocks.
    """
    rng = random.Random(0)
    ids = itertools.count(4)
    open_sessions: list[list[int]] = []
    requests = []
    for request in azure(path, num_seqs):
        continues = open_sessions and rng.random() < 1 - 1 / CONVERSATION_TURNS
        session = open_sessions.pop(rng.randrange(len(open_sessions))) if continues else [rng.randrange(4)]
        session = session + [next(ids) for _ in range(-(-len(request.prompt) // MOONCAKE_BLOCK))]
        if len(session) < 4 * CONVERSATION_TURNS:
            open_sessions.append(session)
        row = {
            "timestamp": request.arrival_s * 1000,
            "input_length": len(session) * MOONCAKE_BLOCK - rng.randrange(MOONCAKE_BLOCK),
            "output_length": request.num_output,
            "hash_ids": session,
        }
        requests.append(_of_row(row))
    return requests


def _of_row(row: dict[str, Any]) -> WorkloadRequest:
    prompt = np.concatenate([_block_of(hash_id) for hash_id in row["hash_ids"]])[: row["input_length"]]
    return WorkloadRequest(row["timestamp"] / 1000, prompt, max(1, row["output_length"]))


def _block_of(hash_id: int) -> npt.NDArray[np.int32]:
    return np.random.default_rng(hash_id).integers(0, MAX_TOKEN_ID + 1, MOONCAKE_BLOCK, np.int32)
