"""LiteLLM's `completion`, with the provider `openai`."""

import json

import litellm
from report import (
    ADA,
    FERRY,
    FILE,
    HARBOR,
    ISLANDS,
    LANTERN,
    LEDGER,
    PERSON_SCHEMA,
    TOOLS,
    WEATHER,
    WHALE,
    equal,
    kill_the_executor,
    model,
    report,
    said_in,
    spelled,
    thought_of,
    url,
)


def ask(answer, messages=None, **asked):
    """The answer's prompt, asked as a chat."""
    messages = messages or [{"role": "user", "content": answer.prompt}]
    where = {"model": f"openai/{model()}", "api_base": url(), "api_key": "none", "max_retries": 0, "timeout": 120}
    return litellm.completion(**where, messages=messages, max_tokens=600, **asked)


def plain():
    choice = ask(HARBOR).choices[0]
    equal((choice.message.content, choice.finish_reason), (HARBOR.plain, "stop"))


def stream():
    chunks = list(ask(HARBOR, stream=True))
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), HARBOR.plain)
    equal(chunks[-1].choices[0].finish_reason, "stop")


def usage():
    last = list(ask(WHALE, stream=True, stream_options={"include_usage": True}))[-1]
    equal(last.usage.completion_tokens, ask(WHALE).usage.completion_tokens)


def tools():
    choice = ask(ISLANDS, tools=TOOLS, parallel_tool_calls=True).choices[0]
    cities = [json.loads(call.function.arguments)["city"] for call in choice.message.tool_calls]
    equal((cities, choice.finish_reason), (["Oslo", "Bergen"], "tool_calls"))


def tools_stream():
    whole = litellm.stream_chunk_builder(list(ask(LEDGER, tools=TOOLS, stream=True)))
    (call,) = whole.choices[0].message.tool_calls
    equal((call.function.name, json.loads(call.function.arguments)), ("write_file", FILE))


def loop():
    """The reply goes back as LiteLLM writes it, with fields of its own."""
    messages = [{"role": "user", "content": LANTERN.prompt}]
    message = ask(LANTERN, messages, tools=TOOLS).choices[0].message
    messages += [message.model_dump(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18"}]
    equal(ask(LANTERN, messages, tools=TOOLS).choices[0].message.content, said_in(LANTERN.result))


def required():
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        (call,) = ask(HARBOR, tools=TOOLS, tool_choice=choice).choices[0].message.tool_calls
        equal((call.function.name, json.loads(call.function.arguments)), ("get_weather", WEATHER))


def schema():
    wanted = {"type": "json_schema", "json_schema": {"name": "Person", "schema": PERSON_SCHEMA, "strict": True}}
    equal(json.loads(ask(FERRY, response_format=wanted).choices[0].message.content), ADA)


def json_object():
    equal(json.loads(ask(FERRY, response_format={"type": "json_object"}).choices[0].message.content), ADA)


def thinking():
    message = ask(WHALE).choices[0].message
    equal((message.content, message.reasoning_content.strip()), (said_in(WHALE.plain), thought_of(WHALE.plain)))
    deltas = [chunk.choices[0].delta for chunk in ask(WHALE, stream=True)]
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    equal(thought.strip(), thought_of(WHALE.plain))


def logprobs():
    content = ask(HARBOR, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    equal(spelled(content), HARBOR.plain)


def killed():
    chunks, pieces = [], 0
    for chunk in ask(LEDGER, tools=TOOLS, stream=True):
        chunks.append(chunk)
        pieces += bool(chunk.choices[0].delta.tool_calls)
        if pieces == 5:
            pieces += 1
            kill_the_executor()
    (call,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    equal((call.function.name, json.loads(call.function.arguments)), ("write_file", FILE))


report(plain, stream, usage, tools, tools_stream, loop, required, schema, thinking, logprobs, killed, json=json_object)
