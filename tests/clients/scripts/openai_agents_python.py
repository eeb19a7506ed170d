"""The OpenAI Agents SDK, on chat completions and, which is its default, on Responses."""

import os

import agents
import openai
from agents import Agent, ModelSettings, Runner, function_tool
from openai.types.shared import Reasoning
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
    spelled,
    thought_of,
    url,
)

agents.set_tracing_disabled(True)
ON_RESPONSES = os.environ.get("API") == "responses"
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
    settings = {"max_tokens": 600, **asked.pop("settings", {})}
    chosen = model()
    if ON_RESPONSES:
        agents.set_default_openai_client(client)
    else:
        chosen = agents.OpenAIChatCompletionsModel(model(), client)
        settings["include_usage"] = True
    return Agent(name="agent", model=chosen, model_settings=ModelSettings(**settings), **asked)


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
    summary = {"reasoning": Reasoning(summary="auto")} if ON_RESPONSES else {}
    run = await ask(agent(settings=summary), WHALE)
    thoughts = [item.raw_item.summary[0].text for item in run.new_items if item.type == "reasoning_item"]
    equal((run.final_output, [each.strip() for each in thoughts]), (said_in(WHALE.plain), [thought_of(WHALE.plain)]))


async def logprobs():
    if not ON_RESPONSES:
        raise DoesNotApply("has none for chat completions")
    run = await ask(agent(settings={"top_logprobs": 2}), HARBOR)
    equal(spelled(run.raw_responses[0].output[0].content[0].logprobs), HARBOR.plain)


async def goes_on():
    """Each request has what is new, within a run and from run to run."""
    first = await Runner.run(with_tools(), LANTERN.prompt, auto_previous_response_id=True)
    equal((first.final_output, CALLS, len(first.raw_responses)), (said_in(LANTERN.result), [WEATHER], 2))
    second = await Runner.run(with_tools(), WHALE.prompt, previous_response_id=first.last_response_id)
    equal(second.final_output, said_in(WHALE.plain))
    tokens = [run.raw_responses[0].usage.input_tokens for run in (second, await ask(with_tools(), WHALE))]
    equal(tokens[0] > tokens[1], True)


async def own_items():
    """Nothing is kept; all items go back, with thoughts in a form that is not for the client to read."""
    unkept = {"store": False, "response_include": ["reasoning.encrypted_content"]}
    first = await ask(with_tools(settings=unkept), LANTERN)
    equal((first.final_output, CALLS), (said_in(LANTERN.result), [WEATHER]))
    said = [*first.to_input_list(), {"role": "user", "content": WHALE.prompt}]
    equal((await Runner.run(with_tools(settings=unkept), said)).final_output, said_in(WHALE.plain))


def no_such():
    raise DoesNotApply("has no such call")


report(
    **{
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
        "goes_on": goes_on,
        "own_items": own_items,
        **dict.fromkeys(("references", "input_items", "background", "resumed", "cancel", "delete"), no_such),
    }
)
