"""What `baton responses create` asks for; pure."""

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class ResponseQuestion:
    """What is new of a conversation, and what its answer is to be.

    Attributes:
        prompt: message of the user; empty for none.
        tool_outputs: what called tools gave, as (id of the call, text).
        previous: id of the response that is gone on from; empty for none.
        tools: that the model may call, as chats have them.
        schema: that the text has to match, if any.
        thinks: whether the model is told to think, or not to; None leaves it to the model.
        fields: of the request's body, as they are.
    """

    prompt: str
    tool_outputs: tuple[tuple[str, str], ...] = ()
    previous: str = ""
    instructions: str = ""
    tools: list[Json] | None = None
    schema: Json | None = None
    thinks: bool | None = None
    reasoning_effort: str | None = None
    stores: bool = True
    in_background: bool = False
    fields: Json = field(default_factory=dict)

    def body(self) -> Json:
        """The request's body, without what is as the API's default."""
        outputs = [
            {"type": "function_call_output", "call_id": call_id, "output": text} for call_id, text in self.tool_outputs
        ]
        message = [{"role": "user", "content": self.prompt}] if self.prompt else []
        given = {name: value for name, value in self.fields.items() if value != []}
        body: Json = {**given, "input": [*outputs, *message] if outputs else self.prompt}
        if self.previous:
            body["previous_response_id"] = self.previous
        if self.instructions:
            body["instructions"] = self.instructions
        if self.tools is not None:
            body["tools"] = [{"type": "function", **tool["function"]} for tool in self.tools]  # a level less of nesting
        if self.schema is not None:
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": self.schema, "strict": True}}
        if self.thinks is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self.thinks}
        if self.reasoning_effort is not None:
            body["reasoning"] = {"effort": self.reasoning_effort}
        if not self.stores:
            body["store"] = False
        if self.in_background:
            body["background"] = True
        return body
