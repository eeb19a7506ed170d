"""Errors of chats in the words of another API, whose requests become chats."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.chat_steps import ChatSteps
from scheduler_svc.frontend.requests.tokenized_request import TokenizedRequest

Result = TypeVar("Result")


def in_words_of(names: Mapping[str, str], work: Callable[[], Result]) -> Result:
    """What `work` gives. Raises its ApiError with other names.

    Args:
        names: of a chat's parameters in the other API.
    """
    try:
        return work()
    except ApiError as error:
        raise renamed(error, names) from error


def tokenized_in_words_of(names: Mapping[str, str], steps: ChatSteps[TokenizedRequest]) -> ChatSteps[TokenizedRequest]:
    """`in_words_of` for a chat that is tokenized: its grammar, which may be refused later, has the other name too."""
    try:
        tokenized = yield from steps
    except ApiError as error:
        raise renamed(error, names) from error
    if (asked := tokenized.grammar) is None:
        return tokenized
    return replace(tokenized, grammar=asked._replace(param=names.get(asked.param, asked.param)))


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """The error with other names of parameters."""
    message, param = error.message, error.param
    for name, own in names.items():
        message = message.replace(f"'{name}'", f"'{own}'")
    return ApiError(error.status, message, code=error.code, param=param and names.get(param, param))
