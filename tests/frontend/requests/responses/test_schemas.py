"""Requests of POST /v1/responses: a limit, and a wish that has two names."""

import json

import pytest

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.body import parse
from scheduler_svc.frontend.requests.responses.schemas import MAX_METADATA, ResponseRequest


def asked(**fields: object) -> ResponseRequest:
    return parse(json.dumps({"model": "m", "input": "x"} | fields).encode(), ResponseRequest)


def test_a_response_has_as_much_metadata_as_with_openai():
    assert MAX_METADATA == 16
    assert len(asked(metadata={str(i): "x" for i in range(16)}).metadata) == 16
    with pytest.raises(ApiError) as caught:
        asked(metadata={str(i): "x" for i in range(17)})
    assert (caught.value.status, caught.value.param) == (400, "metadata")
    assert "16" in caught.value.message


@pytest.mark.parametrize(
    ("reasoning", "has_summary"),
    [
        ({}, False),
        ({"effort": "low"}, False),
        ({"summary": "auto"}, True),
        ({"generate_summary": "concise"}, True),
        ({"summary": "detailed", "generate_summary": "detailed"}, True),
    ],
)
def test_a_thought_stands_in_a_summary_by_either_name(reasoning: dict[str, str], has_summary: bool):
    found = asked(reasoning=reasoning).reasoning
    assert found is not None
    assert found.has_summary == has_summary
