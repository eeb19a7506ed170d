"""What a request says is checked before it becomes sequences. Pure."""

import msgspec

from common.errors import RequestRejected, WireError
from common.messages import Submit
from common.wire import IntArray, int32_array
from scheduler_svc.core.sequence import largest_token


def checked_prompt(submit: Submit) -> tuple[IntArray, int]:
    """A request's prompt, int32 [tokens], and the largest token id that it names.

    Raises:
        RequestRejected: the prompt or the constraints are malformed.
    """
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


def with_max_tokens(submit: Submit, max_tokens: int) -> Submit:
    """The request with another `max_tokens`."""
    params = msgspec.structs.replace(submit.params, max_tokens=max_tokens)
    return msgspec.structs.replace(submit, params=params)
