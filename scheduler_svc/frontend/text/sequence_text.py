"""The text of one sequence: detokenized, cut at its stop string, its tokens counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_svc.frontend.text.detokenizer import Detokenizer
from scheduler_svc.frontend.text.stop_strings import StopSearch, StopStrings


@dataclass(frozen=True)
class TextRules:
    """What the texts of an answer are made of, and where they end. All its sequences share this.

    Attributes:
        token_bytes: bytes of each token id that shows, from the tokenizer.
        stops: strings that end the text, if any do.
        min_tokens: a stop string ends the text only if it is completed after so many tokens.
        shows_stop_token: whether the token that ended the sequence is a part of the text.
    """

    token_bytes: Mapping[int, bytes]
    stops: StopStrings | None = None
    min_tokens: int = 0
    shows_stop_token: bool = False


class SequenceText:
    """Takes tokens as they come and gives the text that may be shown.

    The outcome (text, reason, number of tokens) does not depend on how the tokens were grouped into calls, and neither
    does the text given after the first k tokens, for any k. So another frontend can continue a stream
    after any chunk.

    Args:
        rules: of the answer that the sequence belongs to.
        num_delivered: number of tokens whose text the client has; that text is not given again.

    Attributes:
        num_tokens: tokens up to and including the one that ended the sequence, a stop token among them.
        has_ended: no more tokens may be fed.
        stop_string: what ended the text, if it was a stop string; else empty.
    """

    def __init__(self, rules: TextRules, num_delivered: int = 0) -> None:
        self._rules = rules
        self._detokenizer = Detokenizer(rules.token_bytes)
        self._search = None if rules.stops is None else StopSearch(rules.stops)
        self._num_delivered = num_delivered
        self.num_tokens = 0
        self.has_ended = False
        self.stop_string = ""

    def feed(self, token_ids: Sequence[int], finish_reason: str | None) -> tuple[str, str | None]:
        """New text, and why the sequence ended if it did.

        Args:
            token_ids: new tokens; if `finish_reason` is "stop" the last of them is the stop token.
            finish_reason: why the core ended the sequence, None while it goes on.
        """
        num_old = self._num_delivered - self.num_tokens
        if num_old <= 0:
            return self._feed(token_ids, finish_reason)
        if finish_reason == "stop":  # the client may have counted the stop token
            num_old = min(num_old, len(token_ids) - 1)
        _, reason = self._feed(token_ids[:num_old], None)
        return ("", reason) if self.has_ended else self._feed(token_ids[num_old:], finish_reason)

    def _feed(self, token_ids: Sequence[int], finish_reason: str | None) -> tuple[str, str | None]:
        shown = token_ids[:-1] if finish_reason == "stop" and not self._rules.shows_stop_token else token_ids
        if self._search is not None:
            text, found = self._feed_search(self._search, shown, is_last=finish_reason is not None)
            if found:
                self.has_ended = True
                self.stop_string = self._search.found
                return text, "stop"
            self.num_tokens += len(token_ids) - len(shown)
        else:
            self.num_tokens += len(token_ids)
            text = self._detokenizer.feed(shown)
            if finish_reason is not None:
                text += self._detokenizer.flush()
        self.has_ended = finish_reason is not None
        return text, finish_reason

    def _feed_search(self, search: StopSearch, token_ids: Sequence[int], *, is_last: bool) -> tuple[str, bool]:
        """Text to show, and whether a stop string was found. Token by token: later tokens must not be counted."""
        texts = []
        for token_id in token_ids:
            self.num_tokens += 1
            text, found = search.feed(self._detokenizer.feed((token_id,)), may_stop=self._may_stop)
            texts.append(text)
            if found:
                return "".join(texts), True
        if is_last:
            text, found = search.feed(self._detokenizer.flush(), may_stop=self._may_stop)
            texts += [text, search.flush()]
            return "".join(texts), found
        return "".join(texts), False

    @property
    def _may_stop(self) -> bool:
        return self.num_tokens > self._rules.min_tokens
