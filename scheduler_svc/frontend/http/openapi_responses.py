"""The Responses API in the OpenAPI document."""

from scheduler_svc.frontend.http.openapi_operation import EVENTS, JSON, Json, Operation

_ONE = "/v1/responses/{response_id}"
_PAGE: dict[str, Json] = {
    "after": {"type": "string"},
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "order": {"enum": ["asc", "desc"], "default": "desc"},
}
RESPONSES_OPERATIONS = (
    Operation(
        "post",
        "/v1/responses",
        "Answer a conversation, of which an earlier response may be a part.",
        "ResponseRequest",
        {JSON: "Response", EVENTS: ""},
    ),
    Operation(
        "get",
        _ONE,
        "A stored response; with `stream`, the events of one in the background.",
        answers={JSON: "Response", EVENTS: ""},
        query={
            "stream": {"type": "boolean", "default": False},
            "starting_after": {"type": "integer", "minimum": -1, "maximum": 2**53, "default": -1},
        },
    ),
    Operation("delete", _ONE, "Forget a response.", answers={JSON: "DeletedResponse"}),
    Operation("post", f"{_ONE}/cancel", "End a response in the background.", answers={JSON: "Response"}),
    Operation("get", f"{_ONE}/input_items", "What a response answers.", answers={JSON: "InputItems"}, query=_PAGE),
)
