"""Cases of the sampler, of penalties and of log-probabilities, on logits with some dozens of likely tokens a row."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.cases import INDEX_BYTES, ITEM_BYTES, VOCAB_SIZE, KernelCase, Tensors, grouped, indices
from benchmarks.rig.gpu_timing import Call
from common.messages import SamplingParams
from common.sampling_columns import SAMPLING_COLUMNS
from kernels import gpu, reference
from kernels.gpu.sampling.log_probs import LogProbs
from kernels.gpu.sampling.sampler import TritonSampler


def _params(temperature: float = 1.0, **filters: Any) -> SamplingParams:
    return SamplingParams(max_tokens=1, temperature=temperature, **filters)


GREEDY, NO_FILTER = _params(temperature=0), _params()
QWEN3 = _params(0.6, top_k=20, top_p=0.95)  # what Qwen3 recommends
TOP_P, MIN_P = _params(top_p=0.95), _params(min_p=0.05)
KINDS = {
    "greedy": (GREEDY,),
    "no filter": (NO_FILTER,),
    "top_k 20, top_p 0.95": (QWEN3,),
    "top_p 0.95": (TOP_P,),
    "min_p 0.05": (MIN_P,),
    "all kinds": (GREEDY, NO_FILTER, QWEN3, TOP_P, MIN_P),
}
"""The parameters of a batch's rows, which take them in turn."""


def sampling_cases(batches: Iterable[int]) -> Iterator[KernelCase]:
    """Every kind of sampling, and log-probabilities, for each of these numbers of rows."""
    for rows in batches:
        yield from (sample_case(rows, kind) for kind in KINDS)
        yield from (log_probs_case(rows, num_top) for num_top in (0, 5, 20))
        yield adjust_logits_case(rows, gpu.adjust_logits)


def sample_case(rows: int, kind: str, vocab_size: int = VOCAB_SIZE) -> KernelCase:
    """A case that samples `rows` rows."""
    params = [KINDS[kind][row % len(KINDS[kind])] for row in range(rows)]

    def tensors(device: torch.device) -> Tensors:
        columns = {
            name: torch.tensor([getattr(each, parameter.name) for each in params], dtype=dtype).to(device)
            for name, parameter in SAMPLING_COLUMNS.items()
            if (dtype := reference.INPUT_DTYPES.get(name))
        }
        return {
            "logits": make_logits(rows, vocab_size, device),
            **columns,
            "uniforms": torch.rand(rows).to(device),
            "lanes": indices(torch.randperm(rows), device),
            "last_tokens": indices(torch.zeros(rows), device),
            "out": indices(torch.zeros(rows), device),
        }

    def ours(tensors: Tensors) -> Call:
        sample = TritonSampler(rows, vocab_size, tensors["logits"].device).sample
        return partial(sample, **grouped(tensors))

    peers: dict[str, Callable[..., object]] = {"greedy": _eager_greedy, "no filter": _eager_draw}
    columns = 4 * torch.float32.itemsize + 2 * INDEX_BYTES  # the parameters, the uniform and the lane
    return KernelCase(
        kernel="sample",
        model="Qwen3",
        step={"rows": rows, "kind": kind},
        bytes_moved=rows * (ITEM_BYTES * vocab_size + columns + 2 * INDEX_BYTES),
        tensors=tensors,
        ours=ours,
        eager=peers.get(kind, _eager_filter_and_draw),
    )


def log_probs_case(rows: int, num_top: int, vocab_size: int = VOCAB_SIZE) -> KernelCase:
    """A case of log-probabilities: of one token of each row, and of the `num_top` likeliest tokens."""

    def tensors(device: torch.device) -> Tensors:
        top = torch.empty(rows, num_top, device=device)
        return {
            "logits": make_logits(rows, vocab_size, device),
            "token_ids": indices(torch.randint(vocab_size, (rows,)), device),
            "out_chosen": torch.empty(rows, device=device),
            "out_top": top,
            "out_top_ids": torch.empty_like(top, dtype=torch.int32),
        }

    def ours(tensors: Tensors) -> Call:
        return partial(LogProbs(rows, vocab_size, tensors["logits"].device).log_probs, num_top=num_top, **tensors)

    def eager(logits: Tensor, token_ids: Tensor, out_chosen: Tensor, out_top: Tensor, out_top_ids: Tensor) -> None:
        scores = logits.float().log_softmax(-1)
        out_chosen.copy_(scores.gather(1, token_ids.long()[:, None])[:, 0])
        if num_top:
            top = scores.topk(num_top)
            out_top.copy_(top.values)
            out_top_ids.copy_(top.indices)

    results = torch.float32.itemsize + num_top * (torch.float32.itemsize + INDEX_BYTES)
    return KernelCase(
        kernel="log_probs",
        model="Qwen3",
        step={"rows": rows, "top": num_top},
        bytes_moved=rows * (ITEM_BYTES * vocab_size + INDEX_BYTES + results),
        tensors=tensors,
        ours=ours,
        eager=eager,
        scalars={"num_top": num_top},
    )


def adjust_logits_case(
    rows: int, ours: Callable[..., object], num_tokens: int = 2000, vocab_size: int = VOCAB_SIZE
) -> KernelCase:
    """A case of adjusted scores: all three penalties, of sequences half of which is the prompt.

    Args:
        rows: of the batch.
        ours: `adjust_logits` of the device's kernels.
        num_tokens: of each row's sequence.
        vocab_size: of the logits.
    """

    def tensors(device: torch.device) -> Tensors:
        none = {"bias_starts": rows + 1, "bias_ids": 0, "word_starts": rows + 1, "word_offsets": 1, "word_tokens": 0}
        penalties = {"presences": 0.5, "frequencies": 0.25, "repetitions": 1.1}
        return {
            "logits": make_logits(rows, vocab_size, device),
            "lanes": indices(torch.randperm(rows), device),
            "lengths": indices([num_tokens] * rows, device),
            "num_prompts": indices([num_tokens // 2] * rows, device),
            **{name: torch.full((rows,), penalty, device=device) for name, penalty in penalties.items()},
            "mask_rows": indices([-1] * rows, device),
            "masks": indices(torch.zeros(0, reference.mask_words(vocab_size)), device),
            "biases": torch.zeros(0, device=device),
            **{name: indices(torch.zeros(size), device) for name, size in none.items()},
            "lane_tokens": indices(torch.randint(vocab_size, (rows, num_tokens)), device),
            "out": torch.empty(rows, vocab_size, device=device),
        }

    scores = (ITEM_BYTES + torch.float32.itemsize) * vocab_size
    numbers = INDEX_BYTES * (num_tokens + 4 + 2) + 3 * torch.float32.itemsize
    return KernelCase(
        kernel="adjust_logits",
        model="Qwen3",
        step={"rows": rows, "tokens": num_tokens},
        bytes_moved=rows * (scores + numbers) + 3 * INDEX_BYTES,
        tensors=tensors,
        ours=lambda tensors: partial(ours, **grouped(tensors)),
        eager=_eager_penalties,
    )


def make_logits(rows: int, vocab_size: int, device: torch.device) -> Tensor:
    """bfloat16 [rows, vocab]: a normal distribution, and up to 64 tokens of each row far above it."""
    likely = torch.randint(vocab_size, (rows, 64), device=device)
    logits = 2 * torch.randn(rows, vocab_size, device=device)
    return logits.scatter_(1, likely, 12 + 4 * torch.randn(rows, 64, device=device)).bfloat16()


def _eager_penalties(
    logits: Tensor,
    lanes: Tensor,
    lengths: Tensor,
    num_prompts: Tensor,
    presences: Tensor,
    frequencies: Tensor,
    repetitions: Tensor,
    lane_tokens: Tensor,
    out: Tensor,
    **_: Tensor,
) -> Tensor:
    """Penalties with dense counts, as vLLM's sampler computes them."""
    tokens = lane_tokens[lanes].long()
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    known = (positions < lengths[:, None]).float()
    generated = known * (positions >= num_prompts[:, None])
    met, counts = (torch.zeros_like(out).scatter_add_(1, tokens, each) for each in (known, generated))
    scores = logits.float()
    penalized = torch.where(scores > 0, scores / repetitions[:, None], scores * repetitions[:, None])
    out.copy_(torch.where(met > 0, penalized, scores))
    out -= frequencies[:, None] * counts
    out -= presences[:, None] * (counts > 0)
    return out


def _eager_greedy(logits: Tensor, lanes: Tensor, last_tokens: Tensor, out: Tensor, **_: Tensor) -> Tensor:
    last_tokens[lanes] = out.copy_(logits.argmax(-1))
    return out


def _eager_draw(
    logits: Tensor,
    temperatures: Tensor,
    uniforms: Tensor,
    lanes: Tensor,
    last_tokens: Tensor,
    out: Tensor,
    **_: Tensor,
) -> Tensor:
    cdf = torch.softmax(logits.float() / temperatures[:, None], -1).cumsum(-1)
    last_tokens[lanes] = out.copy_(_invert(cdf, uniforms))
    return out


def _eager_filter_and_draw(
    logits: Tensor,
    temperatures: Tensor,
    top_ks: Tensor,
    top_ps: Tensor,
    min_ps: Tensor,
    uniforms: Tensor,
    lanes: Tensor,
    last_tokens: Tensor,
    out: Tensor,
) -> Tensor:
    scores, token_ids = (logits.float() / temperatures.clamp(min=1e-6)[:, None]).sort(-1, descending=True)
    ranks = torch.arange(logits.shape[-1], device=logits.device)
    scores = scores.masked_fill((ranks >= top_ks[:, None]) & (top_ks[:, None] > 0), -torch.inf)
    probs = torch.softmax(scores, -1)
    kept = (probs.cumsum(-1) - probs < top_ps[:, None]) & (probs >= min_ps[:, None] * probs[:, :1])
    by_id = torch.zeros_like(probs).scatter_(1, token_ids, probs * kept)
    drawn = _invert(by_id.cumsum(-1), uniforms)
    last_tokens[lanes] = out.copy_(torch.where(temperatures > 0, drawn, token_ids[:, 0]))
    return out


def _invert(cdf: Tensor, uniforms: Tensor) -> Tensor:
    return torch.searchsorted(cdf, uniforms[:, None] * cdf[:, -1:], right=True)[:, 0].clamp(max=cdf.shape[1] - 1)
