"""A tokenized request becomes an answer while it is generated."""

from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.event_ids import Position
from scheduler_svc.frontend.answers.generation import AnswerSpec, Generation
from scheduler_svc.frontend.answers.prompt_part import prompts_of
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.link.many_requests import open_in_turns
from scheduler_svc.frontend.requests.tokenized_request import TokenizedRequest
from scheduler_svc.frontend.text.tokenizer import Tokenizer


async def open_generation(
    link: CoreLink, tokenizer: Tokenizer, tokenized: TokenizedRequest, context: AnswerContext, client: ApiClient
) -> Generation:
    """Submit a request for a client.

    Raises:
        ApiError, RequestRejected: the client may not send it, the core cannot be reached, or it never takes so many.
    """
    submits = tokenized.submits(client, context.encode())
    spec = AnswerSpec(
        tokenized.request_id,
        context,
        sum(map(len, tokenized.prompts)),
        Position.start(context.num_choices),
        await prompts_of(context, [submit.prompt for submit in submits], tokenizer),
    )
    return Generation(await open_in_turns(link, submits, is_resumable=tokenized.is_resumable), tokenizer, spec)
