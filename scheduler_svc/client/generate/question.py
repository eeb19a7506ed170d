"""What `baton generate` asks for: a completion, or a chat if the model may call tools; pure."""

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A prompt and what its answer is to be.

    Attributes:
        tools: that the model may call; None asks for a completion, as only chats have tools.
        schema: that the answer has to match, if any.
        logprobs: how many of the likeliest tokens are listed in each place; None for no log-probabilities.
        prompt_logprobs: likewise, in each place of the prompt.
    """

    prompt: str
    tools: list[Json] | None = None
    schema: Json | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def needs_whole_answer(self) -> bool:
        """Whether the answer has to come whole: a stream has no log-probabilities of the prompt."""
        return self.prompt_logprobs is not None

    @property
    def path(self) -> str:
        """Where it is posted."""
        return "/v1/completions" if self.tools is None else "/v1/chat/completions"

    def body(self) -> Json:
        """Its fields of the request's body."""
        body: Json = {"prompt": self.prompt}
        if self.tools is not None:
            body = {"messages": [{"role": "user", "content": self.prompt}], "tools": self.tools}
        if self.schema is not None:
            form = {"name": "answer", "schema": self.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        if self.logprobs is not None:
            is_chat = self.tools is not None
            body |= {"logprobs": True, "top_logprobs": self.logprobs} if is_chat else {"logprobs": self.logprobs}
        if self.prompt_logprobs is not None:
            body["prompt_logprobs"] = self.prompt_logprobs
        return body
