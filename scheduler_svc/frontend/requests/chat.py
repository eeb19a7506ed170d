"""Chats: from a checked request to what the core is asked, with tools, thoughts and the grammar of both."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.grammars.spec import GrammarSpec
from scheduler_svc.frontend.parsing.message import MessageRules, ThoughtStart
from scheduler_svc.frontend.requests.chat_steps import ChatSteps, Conversation
from scheduler_svc.frontend.requests.chat_style import ChatStyle, style_of
from scheduler_svc.frontend.requests.limits import (
    check_characters,
    check_length,
    check_logprobs,
    check_min_tokens,
    most_tokens,
)
from scheduler_svc.frontend.requests.schemas import ChatRequest
from scheduler_svc.frontend.requests.structured import AskedGrammar, asked_grammar
from scheduler_svc.frontend.requests.thinking import (
    Thinking,
    asked_thinking,
    continued_thought,
    said_of_thinking,
    thought_of,
)
from scheduler_svc.frontend.requests.tokenized_request import TokenizedRequest, complete
from scheduler_svc.frontend.requests.tools import ToolUse, tool_use
from scheduler_svc.frontend.text.template_program import Ending
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend_options import FrontendOptions


def tokenize_chat(
    body: ChatRequest, tokenizer: Tokenizer, max_model_len: int, style: ChatStyle | None = None
) -> ChatSteps[TokenizedRequest]:
    """A /v1/chat/completions request, tokenized; arguments and errors as for `tokenize_completion`.

    Args:
        style: of the model's chats; None for what its chat template shows.
    """
    style = style_of(tokenizer.chat_template, FrontendOptions()) if style is None else style
    use = tool_use(body.tools, body.tool_choice, parallel=body.parallel_tool_calls, style=style)
    said = said_of_thinking(body, body.reasoning, body.reasoning_effort, body.chat_template_kwargs)
    thinking = asked_thinking(said, style)
    text = yield _conversation(body, use, thinking.variables)
    check_characters(len(text), tokenizer, max_model_len, "messages")
    [prompt] = tokenizer.encode([text], add_special_tokens=False)
    if not prompt:
        raise ApiError(400, "The conversation is empty.", code="invalid_value", param="messages")
    asked = _asked(body, len(prompt), max_model_len)
    thought = _thought(body, text, style)
    content = asked_grammar(body.response_format, body.structured_outputs, body)
    grammar = _with_thought(use.grammar_beside(content), thought, thinking)
    message = MessageRules(
        thought=thought,
        calls=use.calls,
        is_one_call=use.is_one_call,
        stop_in_thought=thought == "none" or style.stop_in_thoughts,
        calls_in_thought=thought != "none" and use.calls != "none",
        parameters=use.parameters,
    )
    request = complete("chatcmpl-", body, [prompt], asked, tokenizer, tokenizer.chat_eos_token_ids, grammar)
    return replace(request, may_shorten=_max_tokens(body) is None, message=message)


def _conversation(body: ChatRequest, use: ToolUse, variables: Mapping[str, Any]) -> Conversation:
    ending: Ending = "message" if body.add_generation_prompt is False else "answer"
    if body.continue_final_message:
        ending = "continued"
    return Conversation([message.plain() for message in body.messages], use.shown, dict(variables), ending)


def _asked(body: ChatRequest, num_prompt: int, max_model_len: int) -> m.SamplingParams:
    """How many tokens and log-probabilities. Raises ApiError (400) if they are too many."""
    num_logprobs = 1 + body.top_logprobs if body.logprobs else 0
    num_listed = body.num_listed_prompt_logprobs
    num_shown_prompt_logprobs = (num_prompt - 1) * num_listed
    max_tokens = _max_tokens(body)
    if max_tokens is None:
        if not max_model_len:
            message = "no executor has joined yet, so the model's length is unknown, and no 'max_tokens' is given"
            raise RequestRejected(message, "no_executor")
        check_length(num_prompt, 1, max_model_len, "messages")
        max_tokens = min(max_model_len - num_prompt, most_tokens(num_logprobs, body.n, num_shown_prompt_logprobs))
    check_length(num_prompt, max_tokens, max_model_len, "messages")
    check_min_tokens(body.min_tokens, max_tokens)
    asked = m.SamplingParams(max_tokens=max_tokens, logprobs=num_logprobs, prompt_logprobs=num_listed)
    check_logprobs(asked, body.n, num_shown_prompt_logprobs)
    return asked


def _max_tokens(body: ChatRequest) -> int | None:
    if body.max_tokens and body.max_completion_tokens and body.max_tokens != body.max_completion_tokens:
        message = "'max_tokens' and 'max_completion_tokens' are two names of one limit, and differ."
        raise ApiError(400, message, code="invalid_value", param="max_tokens")
    return body.max_completion_tokens or body.max_tokens


def _thought(body: ChatRequest, prompt: str, style: ChatStyle) -> ThoughtStart:
    if body.continue_final_message:
        return continued_thought(body.messages[-1].text, style)
    return "none" if body.add_generation_prompt is False else thought_of(prompt, style)


def _with_thought(grammar: AskedGrammar | None, thought: ThoughtStart, thinking: Thinking) -> AskedGrammar | None:
    """The grammar, which begins after the thought; one for the thought alone if it has a budget."""
    budget = None if thought == "none" else thinking.budget
    if grammar is None:
        return None if budget is None else AskedGrammar(GrammarSpec("any", "", thought, budget), thinking.param)
    spec = msgspec.structs.replace(grammar.spec, thought=thought, thought_budget=budget)
    return AskedGrammar(spec, grammar.param)
