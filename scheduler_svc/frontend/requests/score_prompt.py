"""How a model is asked whether a document answers a query: Qwen3-Reranker's prompt, whose answer is "yes" or "no".

The prompt is written around its texts: what a client sends is encoded without special tokens, so that no document can
end its own place. The document comes last; all before it is one prefix of a query's prompts, which is computed once.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from common.errors import RequestRejected
from common.wire import IntArray
from scheduler_svc.frontend.text.literal import encode_literally
from scheduler_svc.frontend.text.long_work import WORTH_A_THREAD
from scheduler_svc.frontend.text.tokenizer import Tokenizer

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
PAIR = "<Instruct>: {}\n<Query>: {}\n<Document>: {}"
CHATML = (
    f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{PAIR}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


@dataclass(frozen=True)
class Frame:
    """A prompt without its texts.

    Attributes:
        head: int32, tokens up to the last special one before the instruction.
        before_instruction, before_query, after_query: texts around these two; the last one ends a line, behind which
            nothing of the document can change how the query is encoded.
        before_document, after_document: texts around the document.
        num_label: tokens of `before_document`.
        tail: int32, tokens from the first special one behind the document on.
        answers: ids of the tokens "no" and "yes".
    """

    head: IntArray
    before_instruction: str
    before_query: str
    after_query: str
    before_document: str
    after_document: str
    num_label: int
    tail: IntArray
    answers: tuple[int, int]


class UnusableModel(ValueError):
    """Why a model cannot be asked."""


class ScorePrompts:
    """Writes a model's prompts.

    The frame is made when it is used first: most services never do.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def work_of_frame(self) -> int:
        """Size of the work that comes first, as `LongWork` counts it: once, another process has to render a chat."""
        return 0 if "fault" in vars(self) else WORTH_A_THREAD + 1

    @cached_property
    def fault(self) -> str:
        """Why the model cannot be asked; empty if it can."""
        try:
            _ = self.frame
        except UnusableModel as error:
            return str(error)
        return ""

    @cached_property
    def frame(self) -> Frame:
        """Raises UnusableModel."""
        answers = (self._answer("no"), self._answer("yes"))
        first, before_query, between, last = _pieces(self._tokenizer)
        special = re.compile("|".join(map(re.escape, self._tokenizer.special_tokens)) or r"(?!)")
        if special.search(before_query) or special.search(between) or "\n" not in between:
            raise UnusableModel("its chat template does not put query and document on lines of one message")
        head_end = max((found.end() for found in special.finditer(first)), default=0)
        found = special.search(last)
        tail_start = found.start() if found else len(last)
        line_end = between.rindex("\n") + 1
        before_document = between[line_end:]
        return Frame(
            self._encoded(first[:head_end]),
            first[head_end:],
            before_query,
            between[:line_end],
            before_document,
            last[:tail_start],
            len(self._encoded(before_document.rstrip())),
            self._encoded(last[tail_start:]),
            answers,
        )

    def leading(self, instruction: str, query: str) -> IntArray:
        """What all prompts of a query begin with, int32 [tokens]. Raises RequestRejected if a text is not Unicode."""
        frame = self.frame
        text = frame.before_instruction + instruction + frame.before_query + query + frame.after_query
        return np.concatenate([frame.head, self._literals([text])[0]])

    def documents(self, texts: Sequence[str], max_tokens: int | None) -> list[IntArray]:
        """What follows for each document up to the prompt's tail, int32 [tokens]. Raises as `leading` does.

        Args:
            max_tokens: of a document; what it has beyond is left out.
        """
        frame = self.frame
        labelled = self._literals([frame.before_document + text for text in texts])
        if max_tokens is not None:
            labelled = [ids[: frame.num_label + max_tokens] for ids in labelled]
        [after] = self._literals([frame.after_document])
        return [np.concatenate([ids, after]) for ids in labelled] if len(after) else labelled

    def _answer(self, word: str) -> int:
        [ids] = self._tokenizer.encode([word], add_special_tokens=False)
        if len(ids) != 1:
            raise UnusableModel(f"its tokenizer writes {word!r} with {len(ids)} tokens, and an answer has to be one")
        return ids[0]

    def _encoded(self, text: str) -> IntArray:
        [ids] = self._tokenizer.encode([text], add_special_tokens=False)
        return np.asarray(ids, np.int32)

    def _literals(self, texts: Sequence[str]) -> list[IntArray]:
        return [np.asarray(ids, np.int32) for ids in encode_literally(texts, self._tokenizer)]


def _pieces(tokenizer: Tokenizer) -> list[str]:
    """The prompt cut at instruction, query and document: four texts. Raises UnusableModel."""
    marks = [f"mark-{secrets.token_hex(8)}" for _ in range(3)]
    try:
        text = _marked(tokenizer, marks)
    except RequestRejected as error:
        if error.code == "unavailable":  # which may pass
            raise
        raise UnusableModel(str(error)) from error
    pieces = re.split("|".join(marks), text)
    if re.findall("|".join(marks), text) != marks:
        raise UnusableModel("its chat template does not show instruction, query and document once and in this order")
    return pieces


def _marked(tokenizer: Tokenizer, marks: Sequence[str]) -> str:
    template = tokenizer.chat_template
    if template is None:
        missing = [token for token in ("<|im_start|>", "<|im_end|>") if token not in tokenizer.special_tokens]
        if missing:
            raise UnusableModel(f"it has no chat template, and no token {missing[0]}")
        return CHATML.format(*marks)
    instruction, query, document = marks
    if all(f"'{role}'" in template.source or f'"{role}"' in template.source for role in ("query", "document")):
        # Made for pairs: these are its roles, and it writes the rest itself.
        roles = {"system": instruction, "query": query, "document": document}
    else:
        roles = {"system": SYSTEM, "user": PAIR.format(*marks)}
    messages = [{"role": role, "content": content} for role, content in roles.items()]
    return template.render(messages, None, {"enable_thinking": False})
