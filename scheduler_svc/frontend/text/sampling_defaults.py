"""Sampling parameters of requests that name none.

They stand apart from the tokenizer, which has them: an option of the command line is checked by them, too, and does not
import the libraries of a tokenizer for that.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from common.errors import CheckpointError


class SamplingDefaults(msgspec.Struct, frozen=True):
    """What generation_config.json recommends, or whoever serves the model; else OpenAI's defaults."""

    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] = 1.0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100.0)] = 1.0


def read_sampling_defaults(said: Mapping[str, Any], source: str) -> SamplingDefaults:
    """Check recommendations as a request's parameters are checked; a `top_k` of -1 is off, and None says nothing.

    Args:
        said: may have other keys.
        source: who recommends, for errors.

    Raises:
        CheckpointError: a value cannot be meant; the message names its key.
    """
    checked = {}
    for field in msgspec.structs.fields(SamplingDefaults):
        value = said.get(field.name)
        if value is None:
            continue
        meant = 0 if field.name == "top_k" and value == -1 else value
        try:
            checked[field.name] = msgspec.convert(meant, field.type)
        except msgspec.ValidationError as error:
            raise CheckpointError(f"{source} recommends {field.name} {value!r:.80}: {error}") from error
    return SamplingDefaults(**checked)
