"""From a plan to its tokens: where the model, the KV cache and the lanes come together."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import torch

from common import messages as m
from common.logging import get_logger
from common.plan import ExecutorLimits, PlanColumns
from common.wire import IntArray
from executor_svc.model.attention import AttentionBackend
from executor_svc.model.draw import Drawn, TokenDraw
from executor_svc.model.model import Decoder
from executor_svc.runner.asked_steps import AskedSteps, PendingStep
from executor_svc.runner.grammar_masks import GrammarMasks
from executor_svc.runner.graphs import StepGraphs, next_size
from executor_svc.runner.pooled_results import PooledResults, StagedResults
from executor_svc.runner.prompt_logprobs import PromptLogprobs, StagedTargets
from executor_svc.runner.readback import Readback
from executor_svc.runner.trial_plans import asking, asking_of_prompts, pooling, trial_plan
from executor_svc.staging.arena import Arena
from executor_svc.staging.asked import AskedStep
from executor_svc.staging.batch import StepBatch, arena_size, pad_decode, stage
from executor_svc.staging.pinned_memory import take_pinned_memory

Metadata = TypeVar("Metadata")

_IN_FLIGHT = 3  # steps at most, one more than schedulers keep by default
_PLAIN_ROWS = 32  # eight ranks have four rows each, and four int32 are 16 bytes

log = get_logger("executor")


class Runner(Generic[Metadata]):
    """Runs plans in the order they come. Between plans it remembers the KV cache, each lane's last token, and of lanes
    with constraints what their starts said.

    Args:
        model: whose backend this is.
        draw: draws tokens from its logits.
        backend: owns the KV cache, which has one block more than `limits` says, for padding rows.
        limits: what plans have been checked against.
        device: where the model and the cache live.
        decode_sizes: a plan of sampled single-token rows is padded to the next of these numbers of rows, ascending and
            at most `max_num_seqs`, where there is one.
        token_sizes: another plan is padded to the next of these numbers of tokens, likewise.
        warm_up_lengths: numbers of tokens of the steps that `warm_up` runs, see `KernelSet.warm_up_lengths`.
        grammars: fills masks; None if no plan has a grammar.
        graphs: records steps and replays them; by default as CUDA graphs.
    """

    def __init__(
        self,
        model: Decoder[Metadata],
        draw: TokenDraw,
        backend: AttentionBackend[Metadata],
        limits: ExecutorLimits,
        device: torch.device,
        decode_sizes: Sequence[int] = (),
        token_sizes: Sequence[int] = (),
        warm_up_lengths: Sequence[int] = (1,),
        grammars: GrammarMasks | None = None,
        graphs: StepGraphs | None = None,
    ) -> None:
        self.limits = limits
        self._model = model
        self._draw = draw
        self._backend = backend
        self._decode_sizes = np.array(decode_sizes, dtype=np.int64)
        self._token_sizes = np.array(token_sizes, dtype=np.int64)
        self._warm_up_lengths = warm_up_lengths
        self._arena = Arena(arena_size(limits, backend.max_planned), device)
        self._readback = Readback(device)
        self._graphs = graphs or StepGraphs()
        self._asked_steps = AskedSteps(limits, device, grammars)
        self._lanes = self._asked_steps.lanes
        self._prompt_logprobs = PromptLogprobs(limits, device)
        self._pooled_results = PooledResults(limits, device)
        self._drawn = Drawn.room(limits.max_num_seqs, device)

    def run(self, columns: PlanColumns) -> IntArray:
        """Run a plan and return the tokens of its `sample_rows`, int32 [samples]. Raises as `launch` and `wait` do."""
        return self.launch(columns).wait().token_ids

    def close(self) -> None:
        """Destroy the CUDA graphs. A group of ranks is left after that: the graphs hold its operations."""
        self._graphs.clear()
        self._asked_steps.close()

    @torch.inference_mode()
    def launch(self, columns: PlanColumns) -> PendingStep:
        """Begin to run a plan. On a CPU it has run when this returns; a GPU may still be busy with the plan before.

        Raises:
            WireError: the plan contradicts what was said of a lane.
            RuntimeError: torch failed (out of memory, say). The content of the plan's slots is then unknown.
        """
        asked_plan = self._asked_steps.begin(columns)
        ordered = columns if asked_plan is None else asked_plan.columns
        targets = columns.prompt_targets
        staged = None if targets is None else self._prompt_logprobs.stage(targets)
        results = None if columns.pooled is None else self._pooled_results.stage(columns, columns.pooled)
        if staged is not None or results is not None:
            self._readback.before_overwriting()
        num_rows = self._decode_size(ordered)
        if num_rows is None:
            num_tokens = next_size(self._token_sizes, len(ordered.token_ids))
            batch = stage(ordered, self._arena, self._backend, padded_tokens=num_tokens)
            recorded = num_tokens is not None and self._arena.holds(batch.token_ids)
            parts = self._graphs.parts(len(batch.token_ids)) if recorded else None
            self._forward(batch, parts, staged, results)
        else:
            batch = self._stage_padded(ordered, num_rows)
            if not self._graphs.replay_forward(num_rows):
                self._forward(batch)
        asked = None if asked_plan is None else self._asked_steps.stage(asked_plan)
        self._readback.before_overwriting()
        if asked is not None or num_rows is None or not self._graphs.replay_sampling(num_rows):
            self._sample(batch, asked)
        drawn = self._drawn.of(len(columns.sample_rows), asked)
        found = [drawn.tokens] if asked is None else [*vars(drawn).values()]
        if staged is not None:
            found += vars(staged.out).values()
        pooled = columns.pooled if self._model.is_first_rank else None
        if results is not None and pooled is not None:
            found.append(results.out)
        order = None if asked_plan is None else asked_plan.order
        copies = self._readback.start(found)
        without = {} if asked is None else asked.without
        pending = PendingStep(columns.logprob_counts, columns.constrained, targets, pooled, order, without, copies)
        if asked_plan is not None and asked is not None:
            self._asked_steps.launched(asked_plan, asked, drawn, pending)
        return pending

    def usable(self) -> bool:
        """Whether the device still works. After some errors (an access out of bounds) a GPU does nothing any more."""
        try:
            if self._lanes.last_tokens.is_cuda:
                torch.cuda.synchronize(self._lanes.last_tokens.device)
        except RuntimeError:
            return False
        return True

    def warm_up(self) -> None:
        """Do what the first real plan should not wait for: lazy initialisation, and capturing graphs."""
        limits = self.limits
        for length in self._warm_up_lengths:
            rows = -(-length // limits.max_model_len)
            if rows <= limits.max_num_seqs:
                self.run(self._trial(_spread(length, rows)))
        if self._lanes.last_tokens.is_cuda:
            self.run(self._trial([1], limits.max_model_len - 1))
            for power in range(min(limits.max_num_seqs, limits.max_batch_tokens).bit_length()):
                self.run(self._trial([1] * (1 << power)))
            self.run_largest_step()
            self._capture_graphs()
            self._take_spare_memory()
        self._lanes.last_tokens.zero_()

    def run_largest_step(self) -> None:
        """Run steps that take as much memory as any will."""
        for columns in self.largest_plans():
            self.run(columns)

    def _trial(self, query_lens: Sequence[int], computed: Sequence[int] | int = 0) -> PlanColumns:
        """A trial plan in the padding block: what is in the others may be another executor's, and count."""
        return trial_plan(query_lens, self.limits.block_size, computed, block=self.limits.num_blocks)

    def largest_plans(self) -> list[PlanColumns]:
        """Most tokens; most pooled results; and one long row among short ones, whose attention flash-attn cuts into the
        most pieces."""
        limits = self.limits
        rows = min(limits.max_num_seqs, limits.max_batch_tokens)
        query_lens = np.minimum(_spread(limits.max_batch_tokens, rows), limits.max_model_len)
        plans = [self._trial(query_lens.tolist()), *self._pooling_plans()]
        return [*plans, *self._long_rows([min(rows, limits.max_batch_tokens - 1)])]

    def _long_rows(self, sizes: Sequence[int]) -> list[PlanColumns]:
        """Steps of so many rows, the first one as long as can be. The last has two tokens: a decode step is a graph."""
        limits = self.limits
        return [
            self._trial([*[1] * (rows - 1), 2], [limits.max_model_len - 1, *[0] * (rows - 1)])
            for rows in sizes
            if 2 <= rows < limits.max_batch_tokens and limits.max_model_len > 1
        ]

    def _take_spare_memory(self) -> None:
        """Hold what steps in flight take besides: capturing graphs has given all of it back, pinned memory, too."""
        sizes = self._decode_sizes.tolist()
        rows = [self._trial([1] * size) for size in sizes]
        # Fewer rows are cut into more pieces, and what they take comes out of torch's pool for small pieces.
        for columns in [*rows, *self.largest_plans(), *self._long_rows(sizes), *self.asking_plans()]:
            for pending in [self.launch(columns) for _ in range(_IN_FLIGHT)]:
                pending.wait()
        copied = [self._arena.num_bytes, *self._asked_steps.copied_bytes(), *self._prompt_logprobs.copied_bytes()]
        copied += self._pooled_results.copied_bytes()
        copied += [tensor.nbytes for tensor in vars(self._drawn).values()]
        take_pinned_memory(copied, _IN_FLIGHT)

    def asking_plans(self) -> Iterator[PlanColumns]:
        """What samples may ask for, of few rows and of many, and behind so many plain ones that the first row of each
        rank begins at addresses of all kinds: kernels, torch's as well, are compiled or loaded for each kind. And what
        prompts may ask for."""
        limits = self.limits
        most = min(limits.max_num_seqs, limits.max_batch_tokens)
        sizes = {most, *(1 << power for power in range(most.bit_length()))}
        behind = min(most, _PLAIN_ROWS)
        for rows, num_plain in [*((size, 0) for size in sorted(sizes)), *((behind, n) for n in range(1, behind))]:
            yield asking(self._trial([1] * rows), num_plain, limits.vocab_size)
        # The chunks of their targets begin at addresses of all kinds, too, the first four and one row of the next.
        num_tokens = min(limits.max_batch_tokens, 4 * limits.max_num_seqs + 1)
        prompts = _spread(num_tokens, min(limits.max_num_seqs, -(-num_tokens // limits.max_model_len)))
        for count in (1, 2, min(m.MAX_LOGPROBS, 1 + limits.vocab_size)):
            yield asking_of_prompts(self._trial(prompts), count)

    def _pooling_plans(self) -> list[PlanColumns]:
        """Rows that want hidden states, of few and of as many as there may be; and rows that want logits. Of the tasks
        that are taken."""
        limits = self.limits
        counts = [0] if "embed" in limits.tasks else []
        counts += [1, m.MAX_POOLED_TOKEN_IDS] if "score" in limits.tasks else []
        most = min(limits.max_num_seqs, limits.max_batch_tokens, m.MAX_PLAN_POOLED_FLOATS // limits.hidden_size)
        return [
            pooling(self._trial([1] * rows), count, limits.hidden_size)
            for rows in sorted({1, most})
            for count in counts
        ]

    def _capture_graphs(self) -> None:
        if not len(self._decode_sizes):
            return
        start, free_before = time.monotonic(), torch.cuda.mem_get_info()[0]
        self.record_steps()
        log.info(
            "graphs captured",
            sizes=len(self._decode_sizes),
            token_sizes=len(self._token_sizes),
            seconds=round(time.monotonic() - start, 1),
            gib=round((free_before - torch.cuda.mem_get_info()[0]) / 2**30, 2),
        )

    @torch.inference_mode()
    def record_steps(self) -> None:
        """Have the parts of padded steps recorded, the largest first."""
        one_row = self._trial([1])
        for num_tokens in self._token_sizes[::-1].tolist():
            batch = stage(one_row, self._arena, self._backend, padded_tokens=num_tokens)
            self._graphs.capture_parts(num_tokens, self._model.parts(batch, self._lanes.last_tokens))
        for num_rows in self._decode_sizes[::-1].tolist():
            batch = self._stage_padded(one_row, num_rows)
            self._graphs.capture_decode(num_rows, partial(self._forward, batch), partial(self._sample, batch, None))

    def _stage_padded(self, columns: PlanColumns, size: int) -> StepBatch[Metadata]:
        limits = self.limits
        padded = pad_decode(columns, size, limits.max_num_seqs, limits.num_blocks, limits.block_size)
        return stage(padded, self._arena, self._backend, fixed=True)

    def _decode_size(self, columns: PlanColumns) -> int | None:
        """How many rows to pad a plan to; None if it is not one of sampled single-token rows alone, or too large."""
        rows = columns.num_rows
        if len(columns.token_ids) > rows or len(columns.sample_rows) < rows or columns.prompt_targets is not None:
            return None
        return next_size(self._decode_sizes, rows)

    def _forward(
        self,
        batch: StepBatch[Metadata],
        parts: Sequence[Callable[[], object]] | None = None,
        targets: StagedTargets | None = None,
        results: StagedResults | None = None,
    ) -> None:
        """All layers, log-probabilities of prompts, pooled results, and the logits of each sampled row. Nothing here,
        nor in `_sample`, waits for a GPU.

        `parts`: see `Decoder.hidden_states`.
        """
        # Steps of decode rows alone have nothing to leave out.
        ends_alone = targets is None and batch.num_tokens > len(batch.row_ends)
        hidden_states = self._model.hidden_states(batch, self._lanes.last_tokens, parts, ends_alone=ends_alone)
        if targets is not None:
            self._prompt_logprobs.compute(targets, hidden_states, self._model, self._draw)
        if results is not None:
            self._pooled_results.compute(results, hidden_states, self._model)
        if len(batch.sample_tokens):
            self._model.compute_logits(hidden_states, batch.sample_tokens)

    def _sample(self, batch: StepBatch[Metadata], asked: AskedStep | None) -> None:
        """A token for each sampled row, into `_drawn` and the lanes; padding rows need none where more is asked."""
        num_samples = len(batch.sample_tokens) if asked is None else asked.num_samples
        if num_samples:
            logits, inputs = self._model.logits(num_samples), batch.sampling
            if num_samples < len(batch.sample_tokens):
                inputs = inputs.rows(slice(0, num_samples))
            self._draw.draw(logits, inputs, asked, self._lanes, self._drawn.of(num_samples, asked))


def _spread(tokens: int, rows: int) -> list[int]:
    """Tokens of each row, as evenly as can be."""
    return [tokens // rows + (row < tokens % rows) for row in range(rows)]
