"""What a request may not exceed: the model's vocabulary, its length, and what an answer may hold."""

from collections.abc import Sequence

import numpy as np

from common import messages as m
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.text.tokenizer import Tokenizer

MAX_ANSWER_LOGPROBS = 2**21  # each is 70 bytes of the answer, and 8 of the memory of scheduler and journal
MAX_ECHOED_BYTES = 2**24  # of text; without log-probabilities, nothing else bounds what an echoed prompt costs


def check_token_ids(param: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Refuse tokens that the model does not have."""
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        bad = min(token_ids) if min(token_ids) < 0 else max(token_ids)
        message = f"Invalid value for '{param}': token id {bad}, the model has 0 to {vocab_size - 1}."
        raise ApiError(400, message, code="invalid_value", param=param)


def check_characters(num_characters: int, tokenizer: Tokenizer, max_model_len: int, param: str) -> None:
    """Refuse a text that is too long whatever its tokens are."""
    limit = max_model_len or tokenizer.max_positions
    if limit and tokenizer.characters_per_token and num_characters > limit * tokenizer.characters_per_token:
        message = (
            f"This model's maximum context length is {limit} tokens. However, the {param} has "
            f"{num_characters} characters, which are {num_characters // tokenizer.characters_per_token} tokens or more."
        )
        raise ApiError(400, message, code="context_length_exceeded", param=param)


def check_length(num_prompt: int, max_tokens: int, max_model_len: int, param: str) -> None:
    """Refuse a sequence that is longer than the model's positions."""
    if max_model_len and num_prompt + max_tokens > max_model_len:
        message = (
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{num_prompt + max_tokens} tokens ({num_prompt} in the {param}, {max_tokens} in the completion)."
        )
        raise ApiError(400, message, code="context_length_exceeded", param=param)


def check_min_tokens(min_tokens: int, max_tokens: int) -> None:
    """Refuse more tokens at least than at most."""
    if min_tokens > max_tokens:
        message = f"Invalid value for 'min_tokens': it is {min_tokens}, and 'max_tokens' is {max_tokens}."
        raise ApiError(400, message, code="invalid_value", param="min_tokens")


def check_can_end(stop_token_ids: Sequence[int], *, ignores_eos: bool) -> None:
    """Refuse a grammar for texts without an end: what says that a text is complete is a stop token."""
    if ignores_eos:
        message = "'ignore_eos' is not allowed with a grammar: its texts end with the model's stop token."
        raise ApiError(400, message, code="invalid_value", param="ignore_eos")
    if not stop_token_ids:
        message = "This model has no stop token, which a text with a grammar ends with: name one in 'stop_token_ids'."
        raise ApiError(400, message, code="invalid_value", param="stop_token_ids")


def check_echo(prompts: Sequence[Sequence[int]], n: int, tokenizer: Tokenizer) -> None:
    """Refuse an answer whose `n` choices of each prompt repeat too much text."""
    size = n * sum(int(tokenizer.token_lengths[np.asarray(prompt)].sum(dtype=np.int64)) for prompt in prompts)
    if size > MAX_ECHOED_BYTES:
        message = (
            f"The answer would echo {size} bytes of prompts; {MAX_ECHOED_BYTES} are allowed: ask for fewer choices."
        )
        raise ApiError(400, message, code="invalid_value", param="echo")


def most_tokens(num_logprobs: int, num_choices: int, num_shown_prompt_logprobs: int) -> int:
    """Tokens that each choice of an answer may have at most, with so many log-probabilities each, beside those of its
    prompts; one at least."""
    left = MAX_ANSWER_LOGPROBS - num_shown_prompt_logprobs
    return max(left // (num_logprobs * num_choices), 1) if num_logprobs else 2**31 - 1


def check_logprobs(params: m.SamplingParams, num_choices: int, num_shown_prompt_logprobs: int) -> None:
    """Refuse an answer with too many log-probabilities: a token is a few bytes of an answer, 21 of these are 2,000.

    Args:
        num_shown_prompt_logprobs: of all prompts' tokens in the answer, each as often as it is shown.
    """
    if num_shown_prompt_logprobs + params.logprobs * params.max_tokens * num_choices > MAX_ANSWER_LOGPROBS:
        of_prompts = ""
        if num_shown_prompt_logprobs:
            of_prompts = f"{num_shown_prompt_logprobs} log-probabilities of prompts and "
        message = (
            f"{of_prompts}{params.logprobs} log-probabilities of each of {params.max_tokens} tokens of {num_choices} "
            f"choices are more than {MAX_ANSWER_LOGPROBS}: ask for fewer of them, for fewer choices or prompts, or for "
            f"a smaller 'max_tokens'."
        )
        param = "logprobs" if params.logprobs else "prompt_logprobs"
        raise ApiError(400, message, code="invalid_value", param=param)
