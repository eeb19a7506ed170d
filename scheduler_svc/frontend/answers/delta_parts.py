"""Deltas in parts that keep no other stream waiting: after an attach they may be whole answers."""

from collections.abc import Sequence

import msgspec

from common import messages as m

Deltas = Sequence[tuple[int, m.TokenDelta]]  # each with its choice
# Of ids, of tokens and of log-probabilities: 8 ms with stop strings, and 50 ms if these and the tokens are long.
MAX_BYTES_AT_ONCE = 4 * 2048
PARSED_SHARE = 4  # so much less at once where texts are taken apart, which may cost 10 us for a token


def delta_bytes(delta: m.TokenDelta) -> int:
    """What reading a delta costs, in bytes of ids."""
    return len(delta.token_ids) + len(delta.logprob_ids) + len(delta.prompt_logprob_ids)


def parts_of(
    deltas: Deltas, num_prompt_logprobs: int, *, are_parsed: bool = False, most_bytes: int = MAX_BYTES_AT_ONCE
) -> list[Deltas]:
    """The same deltas in parts of `most_bytes` at most, or of one token if that has more.

    Args:
        num_prompt_logprobs: `SamplingParams.prompt_logprobs` of the request.
        are_parsed: whether their texts are taken apart.
        most_bytes: of ids; `PARSED_SHARE` times less where texts are taken apart.
    """
    limit = most_bytes // PARSED_SHARE if are_parsed else most_bytes
    if sum(delta_bytes(delta) for _, delta in deltas) <= limit:
        return [deltas]
    parts: list[list[tuple[int, m.TokenDelta]]] = [[]]
    num_bytes = 0
    for choice, delta in deltas:
        for part in _delta_parts(delta, num_prompt_logprobs, limit):
            if parts[-1] and num_bytes + delta_bytes(part) > limit:
                parts.append([])
                num_bytes = 0
            parts[-1].append((choice, part))
            num_bytes += delta_bytes(part)
    return list(parts)


def _delta_parts(delta: m.TokenDelta, num_prompt_logprobs: int, limit: int) -> list[m.TokenDelta]:
    """The prompt's part comes first: it says nothing of tokens or of the end."""
    if delta_bytes(delta) <= limit:
        return [delta]
    row = 4 * (num_prompt_logprobs or 1)
    size = max(limit // row, 1) * row
    ids, values = delta.prompt_logprob_ids, delta.prompt_logprobs
    said = {"token_ids": b"", "logprob_ids": b"", "logprobs": b"", "finish_reason": None}
    of_prompt = [
        msgspec.structs.replace(
            delta,
            **said,
            prompt_logprob_ids=ids[start : start + size],
            prompt_logprobs=values[start : start + size],
        )
        for start in range(0, len(ids), size)
    ]
    return of_prompt + _token_parts(msgspec.structs.replace(delta, prompt_logprob_ids=b"", prompt_logprobs=b""), limit)


def _token_parts(delta: m.TokenDelta, limit: int) -> list[m.TokenDelta]:
    count = len(delta.logprob_ids) // (len(delta.token_ids) or 4)  # log-probabilities of a token
    size = max(limit // 4 // (1 + count), 1) * 4
    starts = range(0, max(len(delta.token_ids), 1), size)
    return [
        msgspec.structs.replace(
            delta,
            token_ids=delta.token_ids[start : start + size],
            logprob_ids=delta.logprob_ids[start * count : (start + size) * count],
            logprobs=delta.logprobs[start * count : (start + size) * count],
            finish_reason=delta.finish_reason if start == starts[-1] else None,
        )
        for start in starts
    ]
