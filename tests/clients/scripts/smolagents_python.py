"""smolagents' OpenAIModel, and its agent that calls tools."""

import json

from report import (
    ADA,
    FERRY,
    FILE,
    HARBOR,
    LEDGER,
    PERSON_SCHEMA,
    TELESCOPE,
    WHALE,
    DoesNotApply,
    equal,
    kill_the_executor,
    model,
    report,
    said_in,
    url,
)
from smolagents import OpenAIModel, ToolCallingAgent, tool
from smolagents.models import ChatMessage, MessageRole, agglomerate_stream_deltas

CALLS = []


@tool
def get_weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: Name of the city.
    """
    CALLS.append(city)
    return "18"


@tool
def write_file(path: str, content: str) -> str:
    """Write a text file.

    Args:
        path: Where.
        content: What.
    """
    return "written"


TOOLS = [get_weather, write_file]


def llm():
    where = {"model_id": model(), "api_base": url(), "api_key": "none"}
    return OpenAIModel(**where, client_kwargs={"max_retries": 0}, max_tokens=600)


def question(answer):
    return [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": answer.prompt}])]


def plain():
    equal(llm().generate(question(HARBOR)).content, HARBOR.plain)


def stream():
    equal("".join(part.content or "" for part in llm().generate_stream(question(HARBOR))), HARBOR.plain)


def usage():
    parts = list(llm().generate_stream(question(WHALE)))
    (count,) = [part.token_usage.output_tokens for part in parts if part.token_usage]
    equal(count, llm().generate(question(WHALE)).token_usage.output_tokens)


def called(message):
    (call,) = message.tool_calls
    arguments = call.function.arguments
    return call.function.name, json.loads(arguments) if isinstance(arguments, str) else arguments


def required():
    """It always asks for `tool_choice` required."""
    equal(called(llm().generate(question(HARBOR), tools_to_call_from=TOOLS)), ("get_weather", {"city": "Oslo"}))


def streamed(kill=False):
    parts = []
    for part in llm().generate_stream(question(LEDGER), tools_to_call_from=TOOLS):
        parts.append(part)
        if kill and len(parts) == 5:
            kill_the_executor()
    equal(called(agglomerate_stream_deltas(parts)), ("write_file", FILE))
    equal(len(parts) > 20, True)


def loop(streaming=False):
    CALLS.clear()
    agent = ToolCallingAgent(tools=TOOLS, model=llm(), max_steps=3, verbosity_level=0, stream_outputs=streaming)
    equal((agent.run(TELESCOPE.prompt), CALLS), ("18 degrees", ["Oslo"]))


def schema():
    wanted = {"type": "json_schema", "json_schema": {"name": "Person", "schema": PERSON_SCHEMA, "strict": True}}
    equal(json.loads(llm().generate(question(FERRY), response_format=wanted).content), ADA)


def json_object():
    equal(json.loads(llm().generate(question(FERRY), response_format={"type": "json_object"}).content), ADA)


def thinking():
    equal(llm().generate(question(WHALE)).content, said_in(WHALE.plain))
    raise DoesNotApply("the answer is apart; the thought is dropped by the client")


def logprobs():
    raise DoesNotApply("has none")


report(
    plain,
    stream,
    usage,
    required,
    schema,
    thinking,
    logprobs,
    tools=loop,
    tools_stream=streamed,
    loop=lambda: loop(streaming=True),
    json=json_object,
    killed=lambda: streamed(kill=True),
)
