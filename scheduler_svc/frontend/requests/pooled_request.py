"""Requests that ask for pooled results: what the core is asked for each of their inputs."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common import messages as m
from common.wire import IntArray
from scheduler_svc.frontend.answers.pooled import PooledAnswer
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.link.many_requests import open_in_turns
from scheduler_svc.frontend.requests.pooled_schemas import PoolingRequest
from scheduler_svc.frontend.requests.tokenized_request import (
    charged,
    check_num_sequences,
    check_priority,
    core_request_id,
    salt_of,
)

MAX_TOKENS = 2**22  # of all inputs: a query is a part of each document's prompt, so the body's size does not bound them


@dataclass(frozen=True)
class PooledRequest:
    """One HTTP request with its inputs as token ids, ready for the core.

    Attributes:
        request_id: id of the answer, and of the core's requests.
        prompts: of each input, int32 as in `Submit.prompt`.
        params: of all of them.
    """

    request_id: str
    prompts: tuple[bytes, ...]
    params: m.SamplingParams
    cache_salt: str
    priority: int
    timeout_s: float | None

    @classmethod
    def of(
        cls, id_prefix: str, body: PoolingRequest, prompts: Sequence[IntArray], params: m.SamplingParams
    ) -> "PooledRequest":
        """The request that a body asks for. Raises ApiError (400) if its inputs are too long together."""
        num_tokens = sum(map(len, prompts))
        if num_tokens > MAX_TOKENS:
            message = f"The inputs have {num_tokens} tokens together, the limit is {MAX_TOKENS}."
            raise ApiError(400, message, code="invalid_value")
        return cls(
            request_id=id_prefix + secrets.token_hex(12),
            prompts=tuple(np.asarray(prompt, "<i4").tobytes() for prompt in prompts),
            params=params,
            cache_salt=body.cache_salt,
            priority=body.priority,
            timeout_s=body.timeout_s,
        )

    @property
    def num_tokens(self) -> int:
        """Of all inputs."""
        return sum(map(len, self.prompts)) // 4

    def submits(self, client: ApiClient) -> list[m.Submit]:
        """One message for each input. Raises ApiError for a priority that this client may not have (403), and for more
        inputs than it may have sequences open (400)."""
        check_priority(self.priority, client)
        check_num_sequences(len(self.prompts), "one for each input", client)
        cache_salt = salt_of(self.cache_salt, client)
        submits = [
            m.Submit(
                request_id=core_request_id(client.id, self.request_id, i),
                prompt=prompt,
                params=self.params,
                stream=False,
                cache_salt=cache_salt,
                priority=self.priority,
                timeout_s=self.timeout_s,
                client=client.id,
                client_limit=client.max_open_requests,
                client_name=client.name,
                weight=client.weight,
                address=client.address,
            )
            for i, prompt in enumerate(self.prompts)
        ]
        return charged(submits, client)

    async def open(self, link: CoreLink, client: ApiClient) -> PooledAnswer:
        """Submit all inputs for a client; others have their turns in between. Raises ApiError or RequestRejected as
        `submits` and `CoreLink.open` do."""
        queue = await open_in_turns(link, self.submits(client))
        return PooledAnswer(queue, self.request_id, len(self.prompts), self.num_tokens)


def positions(state: m.TaskState, truncate: int | None) -> tuple[int, bool]:
    """How many tokens an input may have, and whether what is beyond is left out instead of refused.

    Args:
        state: of the executors.
        truncate: `truncate_prompt_tokens` of a request: -1 for as much as fits.
    """
    if truncate is None:
        return state.max_model_len, False
    return (min(truncate, state.max_model_len) if truncate > 0 else state.max_model_len), True
