"""LangChain's ChatOpenAI."""

from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
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
    url,
)


class Person(BaseModel):
    """What FERRY answers."""

    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """Tell the weather."""
    return "18" if city == "Oslo" else "14"


@tool
def write_file(path: str, content: str) -> str:
    """Write a text file."""
    return f"{len(content)} characters in {path}"


def chat(**asked: Any):
    return ChatOpenAI(base_url=url(), api_key="none", model=model(), max_retries=0, max_tokens=600, **asked)


def with_tools(**asked: Any):
    return chat().bind_tools([get_weather, write_file], **asked)


def plain():
    equal(chat().invoke(HARBOR.prompt).content, HARBOR.plain)


def stream():
    equal("".join(chunk.content for chunk in chat().stream(HARBOR.prompt)), HARBOR.plain)


def usage():
    whole = chat().invoke(WHALE.prompt).usage_metadata
    chunks = list(chat(stream_usage=True).stream(WHALE.prompt))
    (last,) = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    equal(last["output_tokens"], whole["output_tokens"])


def tools():
    calls = with_tools().invoke(ISLANDS.prompt).tool_calls
    equal(
        [(call["name"], call["args"]["city"]) for call in calls], [("get_weather", "Oslo"), ("get_weather", "Bergen")]
    )


def streamed(kill: bool = False):
    whole, pieces = None, 0
    for chunk in with_tools().stream(LEDGER.prompt):
        whole = chunk if whole is None else whole + chunk
        pieces += bool(chunk.tool_call_chunks)
        if kill and pieces == 5:
            pieces += 1
            kill_the_executor()
    (call,) = whole.tool_calls
    equal((call["name"], call["args"]), ("write_file", FILE))
    equal(pieces > 10, True)


def loop():
    messages: list[Any] = [HumanMessage(LANTERN.prompt)]
    messages.append(with_tools().invoke(messages))
    (call,) = messages[-1].tool_calls
    result = get_weather.invoke(call)
    equal(isinstance(result, ToolMessage), True)
    equal(with_tools().invoke([*messages, result]).content, said_in(LANTERN.result))


def required():
    for choice in ("required", "get_weather"):
        (call,) = with_tools(tool_choice=choice).invoke(HARBOR.prompt).tool_calls
        equal((call["name"], call["args"]), ("get_weather", WEATHER))


def schema():
    equal(chat().with_structured_output(Person).invoke(FERRY.prompt), Person(**ADA))


def json_object():
    equal(chat().with_structured_output(Person, method="json_mode").invoke(FERRY.prompt), Person(**ADA))


def thinking():
    equal(chat().invoke(WHALE.prompt).content, said_in(WHALE.plain))
    raise DoesNotApply("the answer is apart; the thought is dropped by the client")


def logprobs():
    found = chat(logprobs=True, top_logprobs=2).invoke(HARBOR.prompt).response_metadata["logprobs"]["content"]
    equal(spelled(found), HARBOR.plain)


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
