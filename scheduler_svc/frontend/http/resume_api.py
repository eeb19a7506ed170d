"""The endpoints for a request that came earlier: read the rest of its answer, or cancel it."""

import asyncio
import re

from fastapi import APIRouter, Request, Response

from common.errors import RequestRejected
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.event_ids import check_event_id
from scheduler_svc.frontend.answers.generation import AnswerSpec, Generation
from scheduler_svc.frontend.answers.prompt_part import prompts_of
from scheduler_svc.frontend.answers.rest import rest_of
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.permissions import client_of
from scheduler_svc.frontend.http.streaming import EventStream
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from scheduler_svc.frontend.link.queries import QUERY_TIMEOUT_S
from scheduler_svc.frontend.requests.responses.schemas import RESPONSE_ID
from scheduler_svc.frontend.requests.schemas import REQUEST_ID
from scheduler_svc.frontend.requests.tokenized_request import core_request_id
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend.tracing.notes import resumes


class ResumeApi:
    """Requests by their ids; a client reaches its own only."""

    def __init__(self, link: CoreLink, tokenizer: Tokenizer, keep_alive_s: float) -> None:
        self._link = link
        self._keep_alive_s = keep_alive_s
        self._tokenizer = tokenizer
        self.router = APIRouter()
        self.router.get("/v1/requests/{request_id}/events", response_model=None)(self.events)
        self.router.delete("/v1/requests/{request_id}", response_model=None)(self.cancel)

    async def events(self, request_id: str, request: Request) -> Response:
        """The request's stream after the event `Last-Event-ID`, or all of it. A connection that read it until now is
        cut off."""
        last_event_id = request.headers.get("last-event-id", "")
        if last_event_id:
            check_event_id(last_event_id)
        queue = self._link.attach_queue()
        try:
            context, encoded = await self._attach(request_id, client_of(request).id, queue)
            num_prompt_tokens = sum(map(len, encoded)) // 4
            position, events = rest_of(request_id, context, num_prompt_tokens, last_event_id)
            prompts = await prompts_of(context, encoded, self._tokenizer)
        except BaseException:
            queue.detach()
            raise
        queue.is_resumable = context.is_resumable
        spec = AnswerSpec(request_id, context, num_prompt_tokens, position, prompts)
        generation = Generation(queue, self._tokenizer, spec)
        resumes(request.scope, generation, client_of(request).id)
        return EventStream(generation, events, keep_alive_s=self._keep_alive_s, is_new=False)

    async def cancel(self, request_id: str, request: Request) -> Response:
        """Cancel the request. Its reader, if there is one, gets an error."""
        client = client_of(request).id
        if self._link.cancel(core_request_id(client, request_id, 0)):
            return Response(status_code=204)
        queue = self._link.attach_queue()
        try:  # only the core knows whether it exists, and how many prompts it has
            await self._attach(request_id, client, queue)
        finally:
            queue.close()
        return Response(status_code=204)

    async def _attach(self, request_id: str, client: str, queue: DeltaQueue) -> tuple[AnswerContext, list[bytes]]:
        """Have the core send all tokens of a request to `queue`. Returns its context and its prompts.

        Raises:
            ApiError, RequestRejected: there is no such request, or the core does not answer.
        """
        is_name = re.fullmatch(REQUEST_ID, request_id, re.ASCII) is not None
        if not is_name or re.fullmatch(RESPONSE_ID, request_id, re.ASCII):  # responses have an endpoint of their own
            raise _not_found(request_id)
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                first = await self._link.attach(core_request_id(client, request_id, 0), 0, queue)
                if not first.found:
                    raise _not_found(request_id)
                context = AnswerContext.decode(first.context)
                others = [
                    self._link.attach(core_request_id(client, request_id, prompt), prompt, queue)
                    for prompt in range(1, context.num_prompts)
                ]
                attached = [first, *await asyncio.gather(*others)]
        except TimeoutError:
            message = f"the scheduler gave no answer in {QUERY_TIMEOUT_S:.0f} s"
            raise RequestRejected(message, "unavailable") from None
        if not all(answer.found for answer in attached):
            raise _not_found(request_id)
        return context, [answer.prompt for answer in attached]


def _not_found(request_id: str) -> ApiError:
    message = f"There is no request '{request_id[:64]}', or none any more."
    return ApiError(404, message, code="request_not_found", param="request_id")
