"""The OpenAI Agents SDK, on chat completions."""

import agents
import openai
from agents import Agent, ModelSettings, Runner, function_tool
from pydantic import BaseModel
from report import (
    ADA,
    FERRY,
    FILE,
    HARBOR,
    ISLANDS,
    LANTERN,
    LEDGER,
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

agents.set_tracing_disabled(True)
CALLS = []


class Person(BaseModel):
    """What FERRY answers."""

    name: str
    age: int


@function_tool
def get_weather(city: str) -> str:
    """Tell the weather."""
    CALLS.append({"city": city})
    return "18" if city == "Oslo" else "14"


@function_tool
def write_file(path: str, content: str) -> str:
    """Write a text file."""
    CALLS.append({"path": path, "content": content})
    return "written"


def agent(**asked):
    CALLS.clear()
    client = openai.AsyncOpenAI(base_url=url(), api_key="none", max_retries=0)
    chat = agents.OpenAIChatCompletionsModel(model(), client)
    settings = {"max_tokens": 600, "include_usage": True, **asked.pop("settings", {})}
    return Agent(name="agent", model=chat, model_settings=ModelSettings(**settings), **asked)


def with_tools(**asked):
    return agent(tools=[get_weather, write_file], **asked)


async def ask(one, answer):
    return await Runner.run(one, answer.prompt)


async def plain():
    equal((await ask(agent(), HARBOR)).final_output, HARBOR.plain)


async def stream():
    run = Runner.run_streamed(agent(), HARBOR.prompt)
    deltas = [event.data async for event in run.stream_events() if event.type == "raw_response_event"]
    equal("".join(each.delta for each in deltas if each.type == "response.output_text.delta"), HARBOR.plain)


async def usage():
    run = Runner.run_streamed(agent(), WHALE.prompt)
    async for _ in run.stream_events():
        pass
    whole = (await ask(agent(), WHALE)).context_wrapper.usage
    equal(run.context_wrapper.usage.output_tokens, whole.output_tokens)


async def tools():
    equal((await ask(with_tools(), ISLANDS)).final_output, ISLANDS.result)
    equal(sorted(call["city"] for call in CALLS), ["Bergen", "Oslo"])


async def loop():
    equal(((await ask(with_tools(), LANTERN)).final_output, CALLS), (said_in(LANTERN.result), [WEATHER]))


async def streamed(kill=False):
    run = Runner.run_streamed(with_tools(), LEDGER.prompt)
    pieces = 0
    async for event in run.stream_events():
        if event.type == "raw_response_event":
            pieces += event.data.type == "response.function_call_arguments.delta"
            if kill and pieces == 5:
                pieces += 1
                kill_the_executor()
    equal((run.final_output, CALLS), (LEDGER.result, [FILE]))
    equal(pieces > 10, True)


async def required():
    for choice in ("required", "get_weather"):
        await ask(with_tools(settings={"tool_choice": choice}, tool_use_behavior="stop_on_first_tool"), HARBOR)
        equal(CALLS, [WEATHER])


async def schema():
    equal((await ask(agent(output_type=Person), FERRY)).final_output.model_dump(), ADA)


def json_object():
    raise DoesNotApply("asks by schema only")


async def thinking():
    run = await ask(agent(), WHALE)
    thoughts = [item.raw_item.summary[0].text for item in run.new_items if item.type == "reasoning_item"]
    equal((run.final_output, [each.strip() for each in thoughts]), (said_in(WHALE.plain), [thought_of(WHALE.plain)]))


def logprobs():
    raise DoesNotApply("has none for chat completions")


report(
    {
        "plain": plain,
        "stream": stream,
        "usage": usage,
        "tools": tools,
        "tools_stream": streamed,
        "loop": loop,
        "required": required,
        "schema": schema,
        "json": json_object,
        "thinking": thinking,
        "logprobs": logprobs,
        "killed": lambda: streamed(kill=True),
    }
)
