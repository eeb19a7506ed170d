"""The package `openai`."""

import json

import openai
from pydantic import BaseModel
from report import (
    ADA,
    CAPTAIN,
    FERRY,
    FILE,
    HARBOR,
    ISLANDS,
    LANTERN,
    LEDGER,
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


class Person(BaseModel):
    """What FERRY and CAPTAIN answer."""

    name: str
    age: int


class GetWeather(BaseModel):
    """Tell the weather."""

    city: str


def client():
    """Without retries: a failure is to be seen."""
    return openai.OpenAI(base_url=url(), api_key="none", max_retries=0, timeout=120)


def ask(answer, **asked):
    """The answer's prompt, asked as a chat."""
    messages = [{"role": "user", "content": answer.prompt}]
    return client().chat.completions.create(**{"model": model(), "messages": messages, "max_tokens": 600, **asked})


def plain():
    """One answer."""
    choice = ask(HARBOR).choices[0]
    equal((choice.message.content, choice.finish_reason), (HARBOR.plain, "stop"))


def stream():
    """A streamed answer."""
    chunks = [chunk for chunk in ask(HARBOR, stream=True) if chunk.choices]
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), HARBOR.plain)
    equal(chunks[-1].choices[0].finish_reason, "stop")


def usage():
    """Counts at the end of a stream."""
    whole = ask(WHALE).usage
    last = list(ask(WHALE, stream=True, stream_options={"include_usage": True}))[-1]
    counts = last.usage.prompt_tokens, last.usage.completion_tokens
    equal(counts, (whole.prompt_tokens, whole.completion_tokens))
    equal(last.usage.completion_tokens_details.reasoning_tokens > 5, True)


def tools():
    """A call, and two."""
    choice = ask(LANTERN, tools=TOOLS).choices[0]
    equal(choice.finish_reason, "tool_calls")
    (call,) = choice.message.tool_calls
    equal((call.function.name, json.loads(call.function.arguments)), ("get_weather", WEATHER))
    both = ask(ISLANDS, tools=TOOLS, parallel_tool_calls=True).choices[0].message
    equal([json.loads(each.function.arguments)["city"] for each in both.tool_calls], ["Oslo", "Bergen"])
    equal(len({each.id for each in both.tool_calls}), 2)
    equal((both.content or "").strip(), ISLANDS.tools.partition("\n")[0])


def tools_stream():
    """A streamed call, by the client's own accumulator."""
    messages = [{"role": "user", "content": LEDGER.prompt}]
    pieces = 0
    with client().chat.completions.stream(model=model(), messages=messages, tools=TOOLS) as events:
        for event in events:
            pieces += event.type == "tool_calls.function.arguments.delta"
        choice = events.get_final_completion().choices[0]
    (call,) = choice.message.tool_calls
    equal((call.function.name, json.loads(call.function.arguments)), ("write_file", FILE))
    equal(choice.finish_reason, "tool_calls")
    equal(pieces > 10, True)


def loop():
    """Results go back, and an answer in words comes."""
    messages = [{"role": "user", "content": LANTERN.prompt}]
    first = client().chat.completions.create(model=model(), messages=messages, tools=TOOLS).choices[0].message
    (call,) = first.tool_calls
    messages += [first.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "18"}]
    second = client().chat.completions.create(model=model(), messages=messages, tools=TOOLS).choices[0]
    equal((second.message.content, second.finish_reason), (said_in(LANTERN.result), "stop"))


def required():
    """A call where the model would have said something, of any function and of a named one."""
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        message = ask(HARBOR, tools=TOOLS, tool_choice=choice).choices[0].message
        (call,) = message.tool_calls
        equal((call.function.name, json.loads(call.function.arguments)), ("get_weather", WEATHER))


def schema():
    """`parse`: an answer, and the arguments of a call, as objects."""
    for answer in (FERRY, CAPTAIN):
        messages = [{"role": "user", "content": answer.prompt}]
        parsed = client().chat.completions.parse(model=model(), messages=messages, response_format=Person)
        equal(parsed.choices[0].message.parsed, Person(**ADA))
    messages = [{"role": "user", "content": HARBOR.prompt}]
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    parsed = client().chat.completions.parse(model=model(), messages=messages, tools=[tool], tool_choice="required")
    (call,) = parsed.choices[0].message.tool_calls
    equal(call.function.parsed_arguments, GetWeather(**WEATHER))


def json_object():
    """Any JSON object."""
    equal(json.loads(ask(FERRY, response_format={"type": "json_object"}).choices[0].message.content), ADA)


def thinking():
    """The thought is apart from the answer, streamed or not, and can be turned off."""
    message = ask(WHALE).choices[0].message
    equal((message.content, message.reasoning_content.strip()), (said_in(WHALE.plain), thought_of(WHALE.plain)))
    deltas = [chunk.choices[0].delta for chunk in ask(WHALE, stream=True) if chunk.choices]
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    content = "".join(delta.content or "" for delta in deltas)
    equal((content, thought.strip()), (said_in(WHALE.plain), thought_of(WHALE.plain)))
    for off in ({"reasoning_effort": "none"}, {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}):
        message = ask(WHALE, **off).choices[0].message
        equal((message.content, getattr(message, "reasoning_content", None)), (said_in(WHALE.plain), None))


def logprobs():
    """Of each token, with others."""
    choice = ask(HARBOR, logprobs=True, top_logprobs=2).choices[0]
    equal(spelled(choice.logprobs.content), HARBOR.plain)
    equal(all(entry.logprob > -0.01 and len(entry.top_logprobs) == 2 for entry in choice.logprobs.content), True)


def killed():
    """The executor is killed in the middle of a streamed call: it arrives whole and once."""
    arguments, names, ids, reasons, pieces = "", [], [], [], 0
    for chunk in ask(LEDGER, tools=TOOLS, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            names += [call.function.name] if call.function.name else []
            ids += [call.id] if call.id else []
            arguments += call.function.arguments or ""
            pieces += 1
        reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
        if pieces == 5:
            pieces += 1
            kill_the_executor()
    equal(json.loads(arguments), FILE)
    equal((names, len(ids), reasons), (["write_file"], 1, ["tool_calls"]))


if __name__ == "__main__":
    report(
        plain, stream, usage, tools, tools_stream, loop, required, schema, thinking, logprobs, killed, json=json_object
    )
