"""The package `openai`, on Responses."""

import json

import openai
from pydantic import BaseModel
from report import (
    ADA,
    CAPTAIN,
    FERRY,
    FILE,
    FLAT_TOOLS,
    HARBOR,
    ISLANDS,
    LANTERN,
    LEDGER,
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

SUMMARY = {"summary": "auto"}


class Person(BaseModel):
    """What FERRY and CAPTAIN answer."""

    name: str
    age: int


class GetWeather(BaseModel):
    """Tell the weather."""

    city: str


def responses():
    """Without retries: a failure is to be seen."""
    return openai.OpenAI(base_url=url(), api_key="none", max_retries=0, timeout=120).responses


def asked(answer, **more):
    """The answer's prompt."""
    return {"model": model(), "input": answer.prompt, "max_output_tokens": 600, **more}


def ask(answer, **more):
    return responses().create(**asked(answer, **more))


def items_of(response, kind):
    return [item for item in response.output if item.type == kind]


def calls_of(response):
    return [(call.name, json.loads(call.arguments)) for call in items_of(response, "function_call")]


def plain():
    """One answer."""
    response = ask(HARBOR)
    equal((response.output_text, response.status), (HARBOR.plain, "completed"))


def stream():
    """A streamed answer; its events are counted without a gap, and the last one has all of it."""
    events = list(ask(HARBOR, stream=True))
    equal("".join(event.delta for event in events if event.type == "response.output_text.delta"), HARBOR.plain)
    equal([event.sequence_number for event in events], list(range(len(events))))
    equal((events[-1].type, events[-1].response.output_text), ("response.completed", HARBOR.plain))
    with responses().stream(**asked(HARBOR)) as run:
        equal([event.type for event in run].count("response.output_text.done"), 1)
        equal(run.get_final_response().output_text, HARBOR.plain)


def usage():
    """Counts at the end of a stream."""
    whole = ask(WHALE).usage
    last = list(ask(WHALE, stream=True))[-1].response.usage
    equal((last.input_tokens, last.output_tokens), (whole.input_tokens, whole.output_tokens))
    equal(last.output_tokens_details.reasoning_tokens > 5, True)


def tools():
    """A call, and two."""
    equal(calls_of(ask(LANTERN, tools=FLAT_TOOLS)), [("get_weather", WEATHER)])
    both = ask(ISLANDS, tools=FLAT_TOOLS, parallel_tool_calls=True)
    equal(calls_of(both), [("get_weather", WEATHER), ("get_weather", {"city": "Bergen"})])
    equal(len({call.call_id for call in items_of(both, "function_call")}), 2)
    equal(both.output_text.strip(), ISLANDS.tools.partition("\n")[0])


def streamed(kill=False):
    """A call whose arguments come in pieces, by the client's own accumulator."""
    pieces, written = 0, ""
    with responses().stream(**asked(LEDGER, tools=FLAT_TOOLS)) as events:
        for event in events:
            if event.type == "response.function_call_arguments.delta":
                pieces += 1
                written += event.delta
                if kill and pieces == 5:
                    kill_the_executor()
        response = events.get_final_response()
    equal((calls_of(response), json.loads(written)), ([("write_file", FILE)], FILE))
    equal((response.status, pieces > 10), ("completed", True))


def loop():
    """All items of an answer go back with a result, and an answer in words comes."""
    first = ask(LANTERN, tools=FLAT_TOOLS)
    (call,) = items_of(first, "function_call")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "18"}
    said = [{"role": "user", "content": LANTERN.prompt}, *first.output, result]
    equal(ask(LANTERN, input=said, tools=FLAT_TOOLS).output_text, said_in(LANTERN.result))


def required():
    """A call where the model would have said something, of any function and of a named one."""
    for choice in ("required", {"type": "function", "name": "get_weather"}):
        equal(calls_of(ask(HARBOR, tools=FLAT_TOOLS, tool_choice=choice)), [("get_weather", WEATHER)])


def schema():
    """`parse`: an answer, streamed or not, and the arguments of a call, as objects."""
    for answer in (FERRY, CAPTAIN):
        equal(responses().parse(**asked(answer), text_format=Person).output_parsed, Person(**ADA))
        with responses().stream(**asked(answer), text_format=Person) as events:
            equal(events.get_final_response().output_parsed, Person(**ADA))
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    flat = {"type": "function", **tool["function"]}
    parsed = responses().parse(**asked(HARBOR, tools=[flat], tool_choice="required"))
    (call,) = items_of(parsed, "function_call")
    equal(call.parsed_arguments, WEATHER)


def json_object():
    """Any JSON object."""
    equal(json.loads(ask(FERRY, text={"format": {"type": "json_object"}}).output_text), ADA)


def thinking():
    """The thought is an item, as text or as a summary, streamed or not, and can be turned off."""
    response = ask(WHALE)
    (item,) = items_of(response, "reasoning")
    equal((response.output_text, item.content[0].text.strip()), (said_in(WHALE.plain), thought_of(WHALE.plain)))
    (item,) = items_of(ask(WHALE, reasoning=SUMMARY), "reasoning")
    equal("".join(part.text for part in item.summary).strip(), thought_of(WHALE.plain))
    for more, kind in (({}, "reasoning_text"), ({"reasoning": SUMMARY}, "reasoning_summary_text")):
        events = list(ask(WHALE, stream=True, **more))
        written = "".join(event.delta for event in events if event.type == f"response.{kind}.delta")
        equal(written.strip(), thought_of(WHALE.plain))
    response = ask(WHALE, reasoning={"effort": "none"})
    equal((response.output_text, items_of(response, "reasoning")), (said_in(WHALE.plain), []))


def logprobs():
    """Of each token, with others."""
    response = ask(HARBOR, include=["message.output_text.logprobs"], top_logprobs=2)
    entries = response.output[0].content[0].logprobs
    equal(spelled(entries), HARBOR.plain)
    equal(all(entry.logprob > -0.01 and len(entry.top_logprobs) == 2 for entry in entries), True)


report(
    plain,
    stream,
    usage,
    tools,
    loop,
    required,
    schema,
    thinking,
    logprobs,
    tools_stream=streamed,
    json=json_object,
    killed=lambda: streamed(kill=True),
)
