"""Requests as frontends send them to the core."""

from array import array
from collections.abc import Iterable
from typing import Any

import msgspec

from common import messages as m

PROMPT = (5, 6, 7)
_OF_SUBMIT = {field.name for field in msgspec.structs.fields(m.Submit)}


def submit(request_id: str, prompt: Iterable[int] = PROMPT, **fields: Any) -> m.Submit:
    """A greedy request for six tokens, and what a test wants different: what is no field of Submit is one of
    SamplingParams."""
    of_submit = {name: fields.pop(name) for name in _OF_SUBMIT & fields.keys()}
    params = m.SamplingParams(**({"max_tokens": 6} | fields))
    return m.Submit(request_id=request_id, prompt=array("i", prompt).tobytes(), params=params, **of_submit)
