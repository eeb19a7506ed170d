"""What a request asks of its tokens' scores, as the core takes it: penalties, biases, bans."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from common import messages as m
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.limits import check_token_ids
from scheduler_svc.frontend.requests.schemas import GenerationRequest
from scheduler_svc.frontend.text.tokenizer import Tokenizer

# Of all prompts' constraints: each prompt is a message of its own, and goes into the journal.
MAX_TOKEN_IDS = 2**22
MAX_GRAMMAR_BYTES = 2**24


def constraints_of(
    body: GenerationRequest, tokenizer: Tokenizer, stop_token_ids: Sequence[int], num_prompts: int
) -> m.Constraints | None:
    """A request's constraints; None if it asks for nothing.

    Args:
        stop_token_ids: tokens that end its sequences.
        num_prompts: requests of the core that carry the constraints.

    Raises:
        ApiError, RequestRejected: the model does not have a token, or it is too much.
    """
    biases = {token_id: bias for token_id, bias in body.logit_bias.items() if bias}
    allowed = tuple(dict.fromkeys(body.allowed_token_ids))
    check_token_ids("logit_bias", tuple(body.logit_bias), tokenizer.vocab_size)
    check_token_ids("allowed_token_ids", allowed, tokenizer.vocab_size)
    words = _bad_words(body.bad_words, tokenizer)
    num_ids = len(biases) + len(allowed) + sum(map(len, words))
    if num_ids * num_prompts > MAX_TOKEN_IDS:
        message = (
            f"{num_ids} token ids of 'allowed_token_ids', 'bad_words' and 'logit_bias' for each of {num_prompts} "
            f"prompts are more than {MAX_TOKEN_IDS}."
        )
        raise ApiError(400, message, code="invalid_value", param="prompt")
    repetition = body.repetition_penalty
    constraints = m.Constraints(
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=tokenizer.sampling_defaults.repetition_penalty if repetition is None else repetition,
        bias_token_ids=_int32(biases),
        biases=np.fromiter(biases.values(), "<f4").tobytes(),
        min_tokens=body.min_tokens if stop_token_ids else 0,  # without stop tokens it is about stop strings alone
        bad_words=tuple(map(_int32, words)),
        allowed_token_ids=_int32(allowed),
    )
    return None if constraints == m.Constraints() else constraints


def with_grammar(params: m.SamplingParams, grammar: str) -> m.SamplingParams:
    """The parameters with a grammar among their constraints."""
    constraints = params.constraints or m.Constraints()
    return msgspec.structs.replace(params, constraints=msgspec.structs.replace(constraints, grammar=grammar))


def check_grammar_size(grammar: str, num_prompts: int) -> None:
    """Refuse a grammar that is too long for so many prompts."""
    size = len(grammar.encode())
    if size * num_prompts > MAX_GRAMMAR_BYTES:
        message = f"A grammar of {size} bytes for each of {num_prompts} prompts is more than {MAX_GRAMMAR_BYTES} bytes."
        raise ApiError(400, message, code="invalid_value", param="prompt")


def _bad_words(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Tokens of each word as it stands at the start of a text, and after a space if there it is another token.

    This is what vLLM's `SamplingParams.update_from_tokenizer` bans: a word with a space of another length is left out.
    """
    bare = list(dict.fromkeys(text.lstrip() for text in texts))
    encoded = iter(tokenizer.encode([form for text in bare for form in (text, f" {text}")], add_special_tokens=False))
    words: list[list[int]] = []
    for text, at_start, after_space in zip(bare, encoded, encoded, strict=True):
        if not at_start:
            raise _bad_word(text, "it has no token")
        words.append(at_start)
        if after_space and after_space[0] != at_start[0] and len(after_space) == len(at_start):
            words.append(after_space)
        if len(at_start) > m.MAX_BAD_WORD_TOKENS:
            raise _bad_word(text, f"it has {len(at_start)} tokens, the limit is {m.MAX_BAD_WORD_TOKENS}")
    for word in words:
        check_token_ids("bad_words", word, tokenizer.vocab_size)
    if len(words) > m.MAX_BAD_WORDS:
        message = (
            f"Invalid value for 'bad_words': {len(words)} of them with those that a space makes other tokens, "
            f"the limit is {m.MAX_BAD_WORDS}."
        )
        raise ApiError(400, message, code="invalid_value", param="bad_words")
    return words


def _bad_word(text: str, problem: str) -> ApiError:
    message = f"Invalid value for 'bad_words': {text[:50]!r}: {problem}."
    return ApiError(400, message, code="invalid_value", param="bad_words")


def _int32(token_ids: Sequence[int] | Mapping[int, float]) -> bytes:
    return np.fromiter(token_ids, "<i4", len(token_ids)).tobytes()
