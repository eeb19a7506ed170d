"""What the fields of requests are made of: types with their limits, and checks that pydantic does not have."""

import json
import re
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, FailFast, Field
from pydantic_core import PydanticCustomError

from common.messages import MAX_BIASES, MAX_LOGPROBS
from scheduler_svc.frontend.text.chat_template import RESERVED_VARIABLES

INT32_MAX = 2**31 - 1
MAX_STOP_CHARACTERS = 256
MAX_BIAS = 100
DECIMAL = r"0|[1-9][0-9]{0,8}"

Item = TypeVar("Item")
FirstError = Annotated[list[Item], FailFast()]  # of a long list that is wrong, one item is described and not all
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
NumLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS - 1)]


class Only:
    """Allows only the values that turn an unsupported parameter off."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __call__(self, value: Any) -> Any:
        """`value`, if it is an allowed one."""
        if any(value == off and isinstance(value, bool) == isinstance(off, bool) for off in self.values):
            return value
        allowed = " or ".join(json.dumps(allowed) for allowed in (*self.values, None))
        raise PydanticCustomError("unsupported_parameter", f"this server supports only {allowed}")


class Instead:
    """Refuses an old parameter, and names the one that took its place."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, value: Any) -> Any:
        """No value is allowed."""
        raise PydanticCustomError("unsupported_parameter", f"send '{self._name}' instead, which took its place")


def _free_variables(variables: dict[str, Any]) -> dict[str, Any]:
    """Variables of a chat template, if the server sets none of them."""
    if reserved := sorted(RESERVED_VARIABLES & variables.keys()):
        raise PydanticCustomError("template_variables", f"it cannot set {', '.join(reserved)}")
    return variables


TemplateVariables = Annotated[dict[str, Any], AfterValidator(_free_variables)]


def stop_list(value: Any) -> Any:
    """One string or several -> a list."""
    return [value] if isinstance(value, str) else value


def prompt_list(value: Any) -> Any:
    """One prompt or several, each as text or as token ids -> a list of prompts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(type(item) is int for item in value):
            return [value]
        if all(isinstance(item, str) for item in value) or all(_is_ids(item) for item in value):
            return value
    raise PydanticCustomError(
        "prompt_type", "it should be a string, a list of strings, a list of token ids, or a list of lists of token ids"
    )


def minus_one_is_off(top_k: int) -> int:
    """0 and -1 both keep all tokens."""
    return max(top_k, 0)


def biases(value: Any) -> dict[int, float]:
    """An object whose names are token ids -> the bias of each of these tokens."""
    if not isinstance(value, dict):
        raise PydanticCustomError("bias_type", "it should be an object with a bias for each token id")
    if len(value) > MAX_BIASES:
        raise PydanticCustomError("biases", f"it has {len(value)} biases, the limit is {MAX_BIASES}")
    for token_id, bias in value.items():
        if re.fullmatch(DECIMAL, token_id, re.ASCII) is None:
            raise PydanticCustomError("bias_token", f"{token_id[:50]!r} is no token id")
        if type(bias) not in (int, float):
            raise PydanticCustomError("bias_type", f"the bias of {token_id} should be a number")
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            limits = f"it should be -{MAX_BIAS} to {MAX_BIAS}"
            raise PydanticCustomError("bias", f"the bias of {token_id} is {str(bias)[:50]}, {limits}")
    return {int(token_id): float(bias) for token_id, bias in value.items()}


def _is_ids(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(type(token) is int for token in item)
