"""What a request says is checked before it becomes sequences. Pure."""

import msgspec

from common.errors import RequestRejected, WireError
from common.messages import MAX_POOLED_TOKEN_IDS, Submit
from common.wire import IntArray, int32_array
from scheduler_svc.core.sequence import largest_token


def checked_prompt(submit: Submit) -> tuple[IntArray, int]:
    """A request's prompt, int32 [tokens], and the largest token id that it names.

    Raises:
        RequestRejected: the prompt or the constraints are malformed, or what is asked for contradicts itself.
    """
    _check_pooling(submit)
    try:
        prompt = int32_array("prompt", submit.prompt)
    except WireError as error:
        raise RequestRejected(str(error)) from error
    if len(prompt) == 0:
        raise RequestRejected("the prompt is empty; it needs at least 1 token")
    if prompt.min() < 0:
        raise RequestRejected(f"prompt has token id {prompt.min()}; ids start at 0")
    try:
        return prompt, largest_token(submit, prompt)
    except WireError as error:
        raise RequestRejected(f"the request's constraints are malformed: {error}") from error


def _check_pooling(submit: Submit) -> None:
    """A pooled result is all that its request may ask for. Raises RequestRejected."""
    params = submit.params
    num_ids, wants_logits = len(params.pooled_token_ids), params.pooling == "logits"
    if bool(num_ids) != wants_logits:
        wanted = f"1 to {MAX_POOLED_TOKEN_IDS}" if wants_logits else "none"
        raise RequestRejected(f"pooling {params.pooling!r} takes {wanted} pooled_token_ids, not {num_ids}")
    if params.pooling == "none":
        return
    asked = {"n": submit.n - 1, "max_tokens": params.max_tokens - 1, "constraints": params.constraints is not None}
    asked |= {"logprobs": params.logprobs, "prompt_logprobs": params.prompt_logprobs}
    if beside := [name for name, is_asked in asked.items() if is_asked]:
        raise RequestRejected(f"a pooled result comes alone: {', '.join(beside)} asks for more")


def with_max_tokens(submit: Submit, max_tokens: int) -> Submit:
    """The request with another `max_tokens`."""
    params = msgspec.structs.replace(submit.params, max_tokens=max_tokens)
    return msgspec.structs.replace(submit, params=params)
