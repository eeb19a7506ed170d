"""Recorded arrivals and lengths as a workload: Azure's traces of LLM inference, and Mooncake's, which say what requests
share. Neither has texts: prompts are drawn, and the shared parts of Mooncake's are equal."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from scheduler_svc.client.bench.workload import MAX_TOKEN_ID, BenchRequest
from scheduler_svc.client.errors import WrongFile

TraceFormat = Literal["azure", "mooncake"]

BLOCK_TOKENS = 512  # that a hash id of Mooncake's stands for
_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_SHARED, _OWN = 0, 1  # kinds of what is drawn: two streams of random numbers
_FIRST_ID = 100  # below it a large vocabulary may have special tokens


@dataclass(frozen=True)
class TraceRow:
    """One request of a trace.

    Attributes:
        at_s: on the trace's clock.
        blocks: ids of the prompt's blocks; prompts with a common beginning of ids have a common beginning.
    """

    at_s: float
    num_prompt: int
    num_output: int
    blocks: tuple[int, ...] = ()


class _MooncakeLine(msgspec.Struct):
    timestamp: float  # in ms
    input_length: int
    output_length: int
    hash_ids: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()


def read_trace(path: Path, form: TraceFormat, limit: int | None) -> list[TraceRow]:
    """The first rows of a trace, in order of arrival.

    Raises:
        WrongFile: it is no trace of this format.
    """
    rows: list[TraceRow] = []
    number = 0
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            for number, row in enumerate(_azure(lines) if form == "azure" else _mooncake(lines), 1):  # noqa: B007
                rows.append(row)
                if len(rows) == limit:
                    break
    except (OSError, ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise WrongFile(f"{path}, row {number + 1}: this is no row of a trace of {form}: {error!r}") from error
    if not rows:
        raise WrongFile(f"{path} has no rows")
    return sorted(rows, key=lambda row: row.at_s)


def _azure(lines: Iterator[str]) -> Iterator[TraceRow]:
    """https://github.com/Azure/AzurePublicDataset: CSV with the time of arrival and both lengths."""
    for row in csv.DictReader(lines):
        when, num_prompt, num_output = (row[name] for name in _COLUMNS)
        yield TraceRow(datetime.fromisoformat(when).timestamp(), int(num_prompt), int(num_output))


def _mooncake(lines: Iterator[str]) -> Iterator[TraceRow]:
    """https://github.com/kvcache-ai/Mooncake: JSON lines with the lengths and a hash for each 512 tokens."""
    decode = msgspec.json.Decoder(_MooncakeLine).decode
    for line in lines:
        if line.strip():
            row = decode(line)
            yield TraceRow(row.timestamp / 1000, row.input_length, row.output_length, row.hash_ids)


def speed(rows: Sequence[TraceRow], rate_per_s: float) -> float:
    """How much faster than recorded the trace has to be for this mean rate of arrivals."""
    seconds = rows[-1].at_s - rows[0].at_s
    return rate_per_s * seconds / (len(rows) - 1) if seconds > 0 else 1.0


def trace_requests(
    rows: Sequence[TraceRow], *, speedup: float, vocab_size: int | None, max_prompt: int | None, max_output: int | None
) -> Iterator[BenchRequest]:
    """The rows as requests. Prompts are made one by one, as together they can be larger than the memory.

    Args:
        speedup: how much faster than recorded they arrive.
        vocab_size: as in `draw_requests`.
        max_prompt, max_output: longer ones are cut.
    """
    for number, row in enumerate(rows):
        num_prompt = max(1, min(row.num_prompt, max_prompt or row.num_prompt))
        num_output = max(1, min(row.num_output, max_output or row.num_output))
        prompt = _prompt(row.blocks, num_prompt, number, vocab_size)
        yield BenchRequest(prompt, num_output, (row.at_s - rows[0].at_s) / speedup)


def _prompt(blocks: Sequence[int], num_tokens: int, number: int, vocab_size: int | None) -> list[int]:
    """Token ids: those that the blocks stand for, then some of this request's own."""
    parts = [_draw(_SHARED, block, BLOCK_TOKENS, vocab_size) for block in blocks[: -(-num_tokens // BLOCK_TOKENS)]]
    num_own = num_tokens - len(parts) * BLOCK_TOKENS
    if num_own > 0:
        parts.append(_draw(_OWN, number, num_own, vocab_size))
    tokens: list[int] = np.concatenate(parts)[:num_tokens].tolist()
    return tokens


def _draw(kind: int, seed: int, count: int, vocab_size: int | None) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    end = min(vocab_size or MAX_TOKEN_ID + 1, MAX_TOKEN_ID + 1)
    return np.random.default_rng([kind, seed]).integers(_FIRST_ID if end > 10 * _FIRST_ID else 0, end, count)
