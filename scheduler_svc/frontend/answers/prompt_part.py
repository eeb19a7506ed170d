"""What an answer shows of its prompts: their text, and how likely their tokens were."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Raw

from common import messages as m
from common.errors import WireError
from common.wire import IntArray, int32_array
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.logprobs import Entry, LogprobsJson, clamped, token_logprob
from scheduler_svc.frontend.answers.openai_objects import CompletionLogprobs, PromptLogprob, to_json
from scheduler_svc.frontend.text.tokenizer import Tokenizer

TOKENS_AT_ONCE = 4096  # about 1 ms


@dataclass(frozen=True)
class Prompt:
    """A prompt of which an answer shows something.

    Attributes:
        token_ids: int32 [tokens], one or more.
        text: of all of them, special tokens too, but for the one that the tokenizer puts before each text: sent as a
            prompt again, it would have that twice. Empty if the answer does not begin with it.
    """

    token_ids: IntArray
    text: str


async def prompts_of(
    context: AnswerContext, encoded: Sequence[bytes], tokenizer: Tokenizer, *, tokens_at_once: int = TOKENS_AT_ONCE
) -> tuple[Prompt, ...]:
    """The prompts of which an answer shows something: all or none. Others have their turns while it works.

    Args:
        encoded: each as in `Submit.prompt`.
    """
    if not (context.echo or context.num_prompt_logprobs):
        return ()
    prompts = []
    for data in encoded:
        token_ids = int32_array("prompt", data)
        text = await _text(token_ids, tokenizer, tokens_at_once) if context.echo else ""
        prompts.append(Prompt(token_ids, text))
    return tuple(prompts)


class PromptPart:
    """One prompt's part of its choices, which all share it. Log-probabilities are written as they come: as objects,
    those of a long prompt would take a hundred megabytes.

    Args:
        num_waiting: choices that wait for it; if there are none, log-probabilities are counted only.

    Attributes:
        num_characters: of the text that choices begin with.
    """

    def __init__(self, context: AnswerContext, prompt: Prompt, tokenizer: Tokenizer, *, num_waiting: int) -> None:
        self.num_characters = len(prompt.text)
        self._text = prompt.text
        self._echoed: LogprobsJson | None = None
        self._token_ids = prompt.token_ids
        self._count = context.num_prompt_logprobs
        self._num_echoed = context.logprobs if context.echo else 0
        self._num_listed = context.prompt_logprobs
        self._texts = tokenizer.token_texts
        self._detokenizer = tokenizer.whole_text()
        self._offset = 0
        self._num_read = 1  # the first token has no log-probability
        self._num_waiting = num_waiting
        self._is_shown = num_waiting > 0
        self._listed = [b"[null"]
        if self._num_echoed:
            first = int(prompt.token_ids[0])
            self._offset = 0 if first == tokenizer.opening_id else len(self._detokenizer.feed((first,)))
            self._echoed = LogprobsJson("completion")
            self._echoed.add_object(CompletionLogprobs([self._texts.of(first).text], [None], [None], [0]))

    @property
    def is_complete(self) -> bool:
        """Whether all has come that a choice waits for."""
        return not (self._is_shown and self._count) or self._num_read == len(self._token_ids)

    def take(self) -> tuple[str, LogprobsJson | None]:
        """What one more choice begins with: the text, and log-probabilities, or None if the request asked for none. The
        last choice that waits lets them go."""
        taken = self._text, self._echoed
        self._num_waiting -= 1
        if self._num_waiting == 0:
            self._text, self._echoed = "", None
        return taken

    def read(self, delta: m.TokenDelta) -> None:
        """Take a delta's log-probabilities of prompt tokens.

        Raises:
            WireError: they are not those of the prompt's next tokens, or were not asked for.
        """
        ids = int32_array("prompt_logprob_ids", delta.prompt_logprob_ids)
        values = clamped("prompt_logprobs", delta.prompt_logprobs)
        num_tokens = len(ids) // (self._count or 1)
        token_ids = self._token_ids[self._num_read : self._num_read + num_tokens]
        if not len(ids) == len(values) == len(token_ids) * self._count:
            asked = f"{self._count} for each of {len(self._token_ids) - self._num_read} prompt tokens"
            raise WireError(f"{len(ids)} prompt_logprob_ids and {len(values)} prompt_logprobs, not {asked}")
        rows, row_values = ids.reshape(-1, self._count or 1), values.reshape(-1, self._count or 1)
        if ((rows[:, 0] >= 0) & (rows[:, 0] != token_ids)).any() or (rows[:, 1:] < 0).any():
            raise WireError("the first log-probability of a prompt token has neither its rank nor its id")
        ranks = (-rows[:, 0]).tolist()
        rows = np.column_stack([token_ids, rows[:, 1:]])
        self._num_read += num_tokens
        if not self._is_shown:
            return
        columns = rows.tolist(), row_values.tolist()
        if self._echoed is not None:
            self._echoed.add([self._entry(*row) for row in zip(*columns, strict=True)])
        if self._num_listed and num_tokens:
            listed = [self._by_id(*row) for row in zip(*columns, ranks, strict=True)]
            self._listed += [b",", to_json(listed)[1:-1]]

    def listed(self) -> Raw:
        """The prompt's tokens as vLLM lists them; once it is complete."""
        return Raw(b"".join([*self._listed, b"]"]))

    def _entry(self, ids: list[int], values: list[float]) -> Entry:
        logprob = token_logprob(self._texts, ids[: self._num_echoed], values[: self._num_echoed])
        entry = Entry(logprob, self._offset)
        self._offset += len(self._detokenizer.feed(ids[:1]))
        return entry

    def _by_id(self, ids: list[int], values: list[float], rank: int) -> dict[str, PromptLogprob]:
        """The token's own first, then those of the likeliest in descending order."""
        ids, values = ids[: self._num_listed], values[: self._num_listed]
        own = {str(ids[0]): PromptLogprob(values[0], rank if rank > 0 else None, self._texts.of(ids[0]).text)}
        likeliest = {
            str(token_id): PromptLogprob(value, rank, self._texts.of(token_id).text)
            for rank, (token_id, value) in enumerate(zip(ids[1:], values[1:], strict=True), start=1)
        }
        return own | likeliest


async def _text(token_ids: IntArray, tokenizer: Tokenizer, tokens_at_once: int) -> str:
    detokenizer = tokenizer.whole_text()
    pieces = []
    for start in range(int(token_ids[0] == tokenizer.opening_id), len(token_ids), tokens_at_once):
        pieces.append(detokenizer.feed(token_ids[start : start + tokens_at_once].tolist()))
        await asyncio.sleep(0)
    return "".join([*pieces, detokenizer.flush()])
