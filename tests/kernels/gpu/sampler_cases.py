"""Rows to sample, logits to sample them from, and what is right: the twin's token, or by float64 one beside an edge."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from common.sampling_columns import SAMPLING_COLUMNS
from kernels import reference
from kernels.gpu.sampling.sampler import TritonSampler
from kernels.reference import INPUT_DTYPES, SamplingInputs

TOLERANCE = 1e-5
"""How far a uniform, a top_p or (as a part of it) a min_p may be from an edge for another token to be right as well."""
LAST_UNIFORM = 1 - 2**-24


@dataclass(frozen=True)
class Row:
    """How a row is sampled."""

    uniform: float = 0.5
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True)
class Arguments:
    """Rows as the sampler takes them, and where it writes: lanes in disorder, between others that are not sampled."""

    inputs: SamplingInputs
    last_tokens: Tensor
    out: Tensor


def arguments_of(rows: list[Row], device: torch.device) -> Arguments:
    lanes = torch.randperm(2 * len(rows), generator=torch.Generator().manual_seed(len(rows)))[: len(rows)]
    names = {name: parameter.name for name, parameter in SAMPLING_COLUMNS.items()} | {"uniforms": "uniform"}
    columns = {
        name: torch.tensor([getattr(row, names[name]) for row in rows], dtype=dtype, device=device)
        for name, dtype in INPUT_DTYPES.items()
        if name != "lanes"
    }
    return Arguments(
        inputs=SamplingInputs(**columns, lanes=lanes.to(device, torch.int32)),
        last_tokens=torch.full((2 * len(rows) + 3,), -7, dtype=torch.int32, device=device),
        out=torch.full((len(rows) + 5,), -9, dtype=torch.int32, device=device)[2:-3],
    )


def draw(logits: Tensor, rows: list[Row], sampler: TritonSampler | None = None, **options: int) -> list[int]:
    """The rows' tokens, which must have gone to their lanes as well and nowhere else; 0 for a row without one."""
    arguments = arguments_of(rows, logits.device)
    sampler = sampler or TritonSampler(len(rows), logits.shape[1], logits.device, **options)
    sampler.sample(logits, **vars(arguments))
    assert arguments.last_tokens[arguments.inputs.lanes.long()].equal(arguments.out.clamp(min=0))
    assert (arguments.last_tokens == -7).sum() == len(rows) + 3
    surroundings = arguments.out.as_strided((len(rows) + 5,), (1,), 0)
    assert (surroundings[:2] == -9).all()
    assert (surroundings[-3:] == -9).all()
    return arguments.out.tolist()


def draw_by_twin(logits: Tensor, rows: list[Row]) -> list[int]:
    arguments = arguments_of(rows, logits.device)
    reference.sample(logits, **vars(arguments))
    return arguments.out.tolist()


def exact_weights(logits: Tensor, row: Row) -> np.ndarray:
    """Unnormalized probabilities of a row's tokens in float64. Equal are those whose float32 scores are."""
    values = logits.float().cpu().numpy()
    scores = (values - values.max()) / np.float32(row.temperature)
    weights = np.exp(scores.astype(np.float64))
    if row.top_k:
        weights[scores < np.sort(scores)[-min(row.top_k, len(scores))]] = 0
    if row.top_p < 1:
        order = np.argsort(scores, kind="stable")
        dropped = weights[order].cumsum() / weights.sum() <= np.float64(np.float32(1) - np.float32(row.top_p))
        dropped[-1] = False
        weights[order[dropped]] = 0
    weights[(np.exp(scores.astype(np.float64)) < row.min_p) & (scores < 0)] = 0
    return weights


def is_right(token: int, logits: Tensor, row: Row) -> bool:
    """Whether the exact distribution has the token's share within the tolerance of the uniform."""
    for top_p in {row.top_p, *(min(1.0, row.top_p + d) for d in (-TOLERANCE, TOLERANCE) if row.top_p < 1)}:
        for min_p in {row.min_p, row.min_p * (1 - TOLERANCE), min(1.0, row.min_p * (1 + TOLERANCE))}:
            weights = exact_weights(logits, replace(row, top_p=top_p, min_p=min_p))
            end = weights[: token + 1].sum() / weights.sum()
            start = end - weights[token] / weights.sum()
            if weights[token] > 0 and start - TOLERANCE <= row.uniform <= end + TOLERANCE:
                return True
    return False


def assert_right(tokens: list[int], logits: Tensor, rows: list[Row]) -> None:
    """Equal to the twin's tokens, but for uniforms and parameters within the tolerance of an edge."""
    expected = draw_by_twin(logits, rows)
    others = [at for at, row in enumerate(rows) if tokens[at] != expected[at]]
    wrong = [at for at in others if rows[at].temperature == 0 or not is_right(tokens[at], logits[at], rows[at])]
    assert not wrong, [(rows[at], tokens[at], expected[at]) for at in wrong]
    assert len(others) <= 1 + len(rows) // 20, "so many are no accident"


KINDS = ("normal", "peaked", "flat", "few values", "mostly -inf")


def make_logits(kind: str, seed: int, num_rows: int, vocab_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(num_rows, vocab_size, generator=generator)
    if kind == "peaked":
        return 5 * normal
    if kind == "flat":
        return normal / 8
    if kind == "few values":
        return normal.round()
    if kind == "mostly -inf":
        dropped = torch.rand(num_rows, vocab_size, generator=generator) < 0.9
        dropped[:, -1] = False
        return (2 * normal).masked_fill(dropped, -torch.inf)
    return 2 * normal
