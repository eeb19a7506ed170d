"""Rows whose scores are no numbers beside rows that have some, whatever is asked of them, for any set of kernels."""

from typing import Protocol

import torch
from torch import Tensor

from kernels import reference
from kernels.arguments import Adjustments
from kernels.reference import INPUT_DTYPES, NO_NUMBERS, NO_TOKEN, SamplingInputs
from tests.kernels.adjustment_rows import AdjustedRow, arrays_of

VOCAB = 300  # three segments of the Triton kernels
TOKEN = 200  # what is strange, and what the rows ask something of
ASKED = {
    "nothing": AdjustedRow(),
    "bias": AdjustedRow(biases={TOKEN: 1.5}),
    "ban, as min_tokens makes them": AdjustedRow(biases={TOKEN: -torch.inf}),
    "penalties": AdjustedRow([TOKEN], [TOKEN, TOKEN], presence=0.5, frequency=0.25, repetition=1.3),
    "repetition to the limit": AdjustedRow([TOKEN], [], repetition=0.01),
    "bad word": AdjustedRow(generated=[3], words=[[3, TOKEN]]),
    "mask": AdjustedRow(allowed=list(range(TOKEN))),
    "everything": AdjustedRow([TOKEN], [TOKEN], 0.5, 0.5, 1.3, list(range(TOKEN)), {TOKEN: -torch.inf}, [[TOKEN]]),
    "all are banned": AdjustedRow(allowed=[]),
}
DRAWS = {"greedy": (0.0, 0, 1.0, 0.0), "drawn": (1.0, 0, 1.0, 0.0), "filtered": (0.7, 5, 0.9, 0.1)}


class Kernels(Protocol):
    """What draws tokens, as twins do."""

    def adjust_logits(self, logits: Tensor, adjustments: Adjustments, lane_tokens: Tensor, out: Tensor) -> None:
        """See `kernels.reference.adjust_logits`."""
        ...

    def sample(self, logits: Tensor, inputs: SamplingInputs, last_tokens: Tensor, out: Tensor) -> None:
        """See `kernels.reference.sample`."""
        ...


def said_by_models(dtype: torch.dtype) -> tuple[Tensor, list[bool | None]]:
    """Scores [rows, VOCAB], and of each row whether they are numbers; None where all are -inf."""
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    row[TOKEN] = 0.0
    minus_inf = torch.full((VOCAB,), -torch.inf)
    strange = [(row, bad) for bad in (torch.nan, -torch.nan, torch.inf)] + [(minus_inf, torch.nan)]
    bad = [base.index_fill(0, torch.tensor(TOKEN), value) for base, value in strange]
    bad += [torch.full((VOCAB,), torch.nan), bad[0].index_fill(0, torch.tensor(VOCAB - 1), torch.inf)]
    good = [row, *(row.index_fill(0, torch.tensor(TOKEN), value) for value in (-torch.inf, torch.finfo(dtype).max))]
    rows: list[tuple[Tensor, bool | None]] = [*((each, False) for each in bad), *((each, True) for each in good)]
    rows.append((minus_inf, None))
    return torch.stack([each for each, _ in rows]).to(dtype), [has_numbers for _, has_numbers in rows]


def check_rows_without_numbers(kernels: Kernels, dtype: torch.dtype, device: torch.device) -> None:
    """Sample every model's row with every question, all in one batch."""
    models, have_numbers = said_by_models(dtype)
    asked = list(ASKED.values()) * len(models)
    logits = models.repeat_interleave(len(ASKED), 0)
    adjustments, lane_tokens = arrays_of(asked, VOCAB)
    on_device = Adjustments(**{name: column.to(device) for name, column in vars(adjustments).items()})
    adjusted, expected = torch.empty(2, len(asked), VOCAB)
    scores = adjusted.to(device)
    kernels.adjust_logits(logits.to(device), on_device, lane_tokens.to(device), scores)
    reference.adjust_logits(logits, adjustments, lane_tokens, expected)
    torch.testing.assert_close(scores.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    draws = list(DRAWS)
    plain_draws = [name for name in draws for _ in have_numbers]
    plain = _draw(kernels, models.to(device).repeat(len(draws), 1), plain_draws)
    for token, has_numbers, name in zip(plain, have_numbers * len(draws), plain_draws, strict=True):
        _check(token, has_numbers, "plain", name, all_banned=False)
    rows = [(question, at) for at in range(len(models)) for question in range(len(ASKED))]
    # Scores are the twin's, so a draw depends on them alone: each model and each question meets each kind of draw.
    mixed = [draws[(question + at) % len(draws)] for question, at in rows]
    tokens = _draw(kernels, scores, mixed)
    assert tokens == _draw(reference, expected, mixed)
    for token, (question, at), name in zip(tokens, rows, mixed, strict=True):
        question_name = list(ASKED)[question]
        _check(token, have_numbers[at], question_name, name, all_banned=question_name == "all are banned")


def _check(token: int, has_numbers: bool | None, *row: str, all_banned: bool) -> None:
    if has_numbers is False:
        assert token == NO_NUMBERS, row
    elif has_numbers is None or all_banned:
        assert token == NO_TOKEN, row
    else:
        assert 0 <= token < VOCAB, row


def _draw(kernels: Kernels, logits: Tensor, draws: list[str]) -> list[int]:
    """Tokens of rows, each of which is drawn in its own way of DRAWS."""
    rows, device = len(logits), logits.device
    names = ("temperatures", "top_ks", "top_ps", "min_ps", "uniforms")
    values = zip(*((*DRAWS[name], 0.4) for name in draws), strict=True)
    columns = {
        name: torch.tensor(column, dtype=INPUT_DTYPES[name], device=device)
        for name, column in zip(names, values, strict=True)
    }
    lanes = torch.arange(rows, dtype=torch.int32, device=device)
    last_tokens, out = torch.full((2, rows), -9, dtype=torch.int32, device=device)
    kernels.sample(logits, SamplingInputs(**columns, lanes=lanes), last_tokens, out)
    assert last_tokens.equal(out.clamp(min=0)), "an index"
    return out.tolist()
