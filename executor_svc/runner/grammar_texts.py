"""Texts under grammars, and which tokens may come next in each: compiled grammars, and matchers that have read a text.

Nothing here knows of threads. A grammar's texts share what its lexer has built, and the library's calls wait for each
other by a lock that some hold together with Python's own: so no two threads may work on texts of one grammar at once.
Compiling and filling a mask let Python's other threads run, reading a token does not by itself (`TokenReader`).
"""

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from common import messages as m
from common.grammars import parser_limits
from common.logging import get_logger
from common.wire import IntArray
from executor_svc.staging.constrained_lanes import allow, packed_mask

# A grammar that uses all the states that its lexer may have takes 4 MB (measured with 151,936 tokens).
COMPILED_BYTES = 8 * 2**20
KEPT_BYTES = 256 * 2**20  # of grammars that no text uses any more: requests with one schema compile it once
SLOW_S = 0.01  # processor time of a mask; one that takes longer is slow, and so is the grammar's next one
HARD_TOKEN_S = 0.001  # to read a token; after one that takes longer, other threads may run during the next
LONG_TEXT = 64  # tokens; a new matcher that has to read more is slow: each takes up to 0.1 ms

_MISMATCH = "satisfy the grammar"  # in the library's error, if a text has a token that the grammar does not allow

log = get_logger("executor")


@dataclass(eq=False)
class Grammar:
    """A grammar.

    Attributes:
        text: in the library's own format.
        base: at the beginning of a text, and only ever copied; None until it is compiled.
        last_s: processor seconds of its last mask; 0 before the first one.
        is_busy: whether a thread works on one of its texts.
    """

    text: str
    base: LLMatcher | None = None
    last_s: float = 0.0
    is_busy: bool = False


class Grammars:
    """The grammars of one executor, and those that it had lately.

    Args:
        tokenizer: of the model.
        vocab_size: of the model.
        kept_bytes: of grammars that no text uses any more.
        limits: of what a text may take; by default those that all services have.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        vocab_size: int,
        kept_bytes: int = KEPT_BYTES,
        limits: LLParserLimits | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.not_eos = ~packed_mask(np.array(tokenizer.eos_tokens, np.int32), vocab_size)
        self._kept: OrderedDict[str, Grammar] = OrderedDict()
        self._kept_bytes = kept_bytes
        self._limits = limits or parser_limits()

    def get(self, text: str) -> Grammar:
        """The grammar of this text. Those that were not asked for lately are dropped."""
        grammar = self._kept.pop(text, None) or Grammar(text)
        self._kept[text] = grammar
        if len(self._kept) * COMPILED_BYTES > self._kept_bytes:
            self._kept.popitem(last=False)
        return grammar

    def text(self, grammar: str, stops: IntArray) -> "GrammarText":
        """A new text under a grammar, of a sequence with these stop tokens."""
        return GrammarText(self.get(grammar), stops)

    def compile(self, grammar: Grammar) -> LLMatcher:
        """Its matcher at the beginning of a text, compiled anew."""
        grammar.base = LLMatcher(self.tokenizer, grammar.text, log_level=0, limits=self._limits)
        return grammar.base


class TokenReader:
    """Reads tokens for one thread.

    While the library reads a token it keeps Python's lock, unless it reads tokens for several matchers: then a second
    one comes along that reads none. That takes 0.1 ms, so only hard tokens are read so.
    """

    def __init__(self, grammars: Grammars) -> None:
        self._executor = LLExecutor(num_threads=1)
        self._companion = LLMatcher(grammars.tokenizer, "", log_level=-1)  # has failed, and stays so

    def read(self, matcher: LLMatcher, token: int, *, is_hard: bool) -> bool:
        """Let a matcher read a token. False if it does not take it."""
        if not is_hard:
            return bool(matcher.consume_token(token))
        return bool(self._executor.consume_token_par([(matcher, token), (self._companion, 0)])[0])


@dataclass(eq=False)
class GrammarText:
    """What a sequence has generated, and the matcher that has read it.

    Attributes:
        stops: the sequence's stop tokens, which are no text.
        matcher: None where it has to be made anew.
        token_s: how long it took to read the last token.
    """

    grammar: Grammar
    stops: IntArray
    tokens: list[int] = field(default_factory=list)
    matcher: LLMatcher | None = None
    token_s: float = 0.0

    def __post_init__(self) -> None:
        self._stops = frozenset(self.stops.tolist())

    @property
    def is_slow(self) -> bool:
        """Whether its next mask will probably take long."""
        if self.grammar.base is None or self.grammar.last_s > SLOW_S:
            return True
        return self.matcher is None and len(self.tokens) > LONG_TEXT

    def append(self, tokens: Sequence[int]) -> list[int]:
        """More was generated. Returns what of it `fill` has to read: a sequence with a stop token has ended."""
        new = [token for token in tokens if token not in self._stops]
        self.tokens += new
        return new

    def fill(self, tokens: Sequence[int], mask: IntArray, grammars: Grammars, reader: TokenReader) -> int:
        """Set the bits of the tokens that may come next.

        Args:
            tokens: what was appended since the last time.
            mask: int32 [ceil(vocab / 32)], all zeros, which it stays where the text cannot go on.
            reader: of the calling thread.

        Returns:
            TOO_COMPLEX, if the text passes the limits of its grammar in a matcher of its own that reads it anew, as
            every executor would find; else NO_TOKEN, which an empty mask means.
        """
        begun = time.thread_time()
        if self.matcher is None:
            self._read_anew(self.grammar.base or grammars.compile(self.grammar), reader)
        else:
            self._read(tokens, reader)
        outcome = m.NO_TOKEN
        if not self._allows(mask, grammars):
            # Matchers of a grammar share what its lexer has built, which has a limit: other texts may have used it up.
            self._read_anew(grammars.compile(self.grammar), reader)
            if not self._allows(mask, grammars):
                outcome = self._why(mask)
        self.grammar.last_s = time.thread_time() - begun
        return outcome

    def _read_anew(self, base: LLMatcher, reader: TokenReader) -> None:
        self.matcher = base.deep_copy()
        self._read(self.tokens, reader)

    def _read(self, tokens: Sequence[int], reader: TokenReader) -> None:
        assert self.matcher is not None
        for token in tokens:
            begun = time.perf_counter()
            is_read = reader.read(self.matcher, token, is_hard=self.token_s > HARD_TOKEN_S)
            self.token_s = time.perf_counter() - begun
            if not is_read:
                break

    def _allows(self, mask: IntArray, grammars: Grammars) -> bool:
        """Fill the mask of the token after the text. False if the matcher has given up."""
        matcher = self.matcher
        assert matcher is not None
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            return False
        mask &= grammars.not_eos
        if matcher.is_accepting():
            allow(mask, self.stops, grammars.vocab_size)
        return True

    def _why(self, mask: IntArray) -> int:
        assert self.matcher is not None
        mask[:] = 0
        reason = self.matcher.get_error().splitlines()[0][:200]
        log.warning("grammar failed", tokens=len(self.tokens), reason=reason)
        return m.NO_TOKEN if _MISMATCH in reason else m.TOO_COMPLEX
