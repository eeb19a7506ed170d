"""The package `anthropic`, on Messages."""

import anthropic
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
    DoesNotApply,
    equal,
    kill_the_executor,
    model,
    report,
    said_in,
    thought_of,
    url,
)

OURS = [
    {key: tool["function"][key] for key in ("name", "description")} | {"input_schema": tool["function"]["parameters"]}
    for tool in TOOLS
]
THINKS = {"type": "enabled", "budget_tokens": 1024}
CALLS = []


class Person(BaseModel):
    """What FERRY and CAPTAIN answer."""

    name: str
    age: int


@anthropic.beta_tool
def get_weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: Name of the city.
    """
    CALLS.append({"city": city})
    return "18" if city == "Oslo" else "14"


def messages():
    """Without retries: a failure is to be seen."""
    return anthropic.Anthropic(base_url=url().removesuffix("/v1"), api_key="none", max_retries=0, timeout=120).messages


def asked(answer, **more):
    """The answer's prompt."""
    turns = [{"role": "user", "content": answer.prompt}]
    return {"model": model(), "messages": turns, "max_tokens": 1600, **more}


def ask(answer, **more):
    return messages().create(**asked(answer, **more))


def blocks(message, kind):
    return [block for block in message.content if block.type == kind]


def calls_of(message):
    return [(call.name, call.input) for call in blocks(message, "tool_use")]


def plain():
    """One answer."""
    message = ask(HARBOR)
    (block,) = message.content
    equal((block.text, message.stop_reason), (HARBOR.plain, "end_turn"))


def stream():
    """A streamed answer."""
    with messages().stream(**asked(HARBOR)) as events:
        equal("".join(events.text_stream), HARBOR.plain)
        equal(events.get_final_message().stop_reason, "end_turn")


def usage():
    """Counts, of a stream and before any answer."""
    with messages().stream(**asked(WHALE, thinking=THINKS)) as events:
        streamed = events.get_final_message().usage
    whole = ask(WHALE, thinking=THINKS).usage
    counts = [(each.input_tokens + each.cache_read_input_tokens, each.output_tokens) for each in (streamed, whole)]
    equal(counts[0], counts[1])
    equal(streamed.output_tokens_details.thinking_tokens > 5, True)
    counted = messages().count_tokens(model=model(), messages=asked(WHALE)["messages"], thinking=THINKS).input_tokens
    equal(counted, counts[0][0])


def tools():
    """The model calls by itself, one function and two at once."""
    message = ask(LEDGER, tools=OURS, thinking=THINKS)
    equal((calls_of(message), message.stop_reason), ([("write_file", FILE)], "tool_use"))
    both = calls_of(ask(ISLANDS, tools=OURS))
    equal(both, [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Bergen"})])


def streamed(kill=False):
    """A call whose input comes in pieces."""
    pieces = 0
    with messages().stream(**asked(LEDGER, tools=OURS, thinking=THINKS)) as events:
        for event in events:
            pieces += event.type == "input_json"
            if kill and pieces == 5:
                pieces += 1
                kill_the_executor()
        message = events.get_final_message()
    equal((calls_of(message), message.stop_reason), ([("write_file", FILE)], "tool_use"))
    equal([thought.thinking.strip() for thought in blocks(message, "thinking")], [thought_of(LEDGER.tools)])
    equal(pieces > 10, True)


def loop():
    """Results go back: by hand, with the thought and its signature, and by the package's runner."""
    first = ask(LANTERN, tools=OURS, thinking=THINKS)
    (call,) = blocks(first, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "18"}
    turns = [
        {"role": "user", "content": LANTERN.prompt},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = ask(LANTERN, messages=turns, tools=OURS, thinking=THINKS)
    equal(blocks(second, "text")[-1].text, said_in(LANTERN.result))
    client = anthropic.Anthropic(base_url=url().removesuffix("/v1"), api_key="none", max_retries=0, timeout=120)
    runner = client.beta.messages.tool_runner(**asked(LANTERN), tools=[get_weather])
    last = runner.until_done()
    equal((blocks(last, "text")[-1].text, CALLS), (said_in(LANTERN.result), [WEATHER]))


def required():
    """A call is forced: of any tool, and of one."""
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        message = ask(HARBOR, tools=OURS, tool_choice=choice)
        equal((calls_of(message), message.stop_reason), ([("get_weather", WEATHER)], "tool_use"))


def schema():
    """JSON by a schema."""
    for answer in (FERRY, CAPTAIN):
        equal(messages().parse(**asked(answer), output_format=Person).parsed_output.model_dump(), ADA)


def json_object():
    raise DoesNotApply("asks by schema only")


def thinking():
    """The thought is a block of its own, streamed or not, where it was asked for."""
    message = ask(WHALE, thinking=THINKS)
    with messages().stream(**asked(WHALE, thinking=THINKS)) as events:
        again = events.get_final_message()
    for each in (message, again):
        thought, said = each.content
        equal((said.text, thought.thinking.strip()), (said_in(WHALE.plain), thought_of(WHALE.plain)))
        equal(bool(thought.signature), True)
    for off in ({}, {"thinking": {"type": "disabled"}}):
        equal([block.text for block in ask(WHALE, **off).content], [said_in(WHALE.plain)])


def logprobs():
    raise DoesNotApply("has none")


if __name__ == "__main__":
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
