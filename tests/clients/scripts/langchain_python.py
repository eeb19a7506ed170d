"""LangChain's ChatOpenAI, on chat completions and on Responses."""

import os
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
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
    thought_of,
    url,
)

ON_RESPONSES = os.environ.get("API") == "responses"


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
    where = {"base_url": url(), "api_key": "none", "model": model(), "max_retries": 0, "max_tokens": 600}
    return ChatOpenAI(**where, use_responses_api=ON_RESPONSES, **asked)


def with_tools(settings: dict[str, Any] | None = None, **asked: Any):
    return chat(**settings or {}).bind_tools([get_weather, write_file], **asked)


def plain():
    equal(chat().invoke(HARBOR.prompt).text, HARBOR.plain)


def stream():
    equal("".join(chunk.text for chunk in chat().stream(HARBOR.prompt)), HARBOR.plain)


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
    equal(with_tools().invoke([*messages, result]).text, said_in(LANTERN.result))


def required():
    for choice in ("required", "get_weather"):
        (call,) = with_tools(tool_choice=choice).invoke(HARBOR.prompt).tool_calls
        equal((call["name"], call["args"]), ("get_weather", WEATHER))


def schema():
    equal(chat().with_structured_output(Person).invoke(FERRY.prompt), Person(**ADA))


def json_object():
    equal(chat().with_structured_output(Person, method="json_mode").invoke(FERRY.prompt), Person(**ADA))


def thinking():
    message = chat(**{"reasoning": {"summary": "auto"}} if ON_RESPONSES else {}).invoke(WHALE.prompt)
    equal(message.text, said_in(WHALE.plain))
    if not ON_RESPONSES:
        raise DoesNotApply("the answer is apart; the thought is dropped by the client")
    (thought,) = [block["reasoning"] for block in message.content_blocks if block["type"] == "reasoning"]
    equal(thought.strip(), thought_of(WHALE.plain))


def logprobs():
    if ON_RESPONSES:
        raise DoesNotApply("the client drops them on Responses")
    found = chat(logprobs=True, top_logprobs=2).invoke(HARBOR.prompt).response_metadata["logprobs"]["content"]
    equal(spelled(found), HARBOR.plain)


def conversation(**settings: Any):
    """A call and its result, and a question afterwards; what the client says of each answer."""
    messages: list[Any] = [HumanMessage(LANTERN.prompt)]
    model = with_tools(settings)
    for question in (None, WHALE.prompt):
        messages.append(HumanMessage(question) if question else model.invoke(messages))
        if not question:
            (call,) = messages[-1].tool_calls
            messages.append(get_weather.invoke(call))
        messages.append(model.invoke(messages))
    said = [message for message in messages if isinstance(message, AIMessage)]
    equal([message.text for message in said[1:]], [said_in(LANTERN.result), said_in(WHALE.plain)])
    return said


def goes_on():
    """The client leaves out what an earlier response has, and names that."""
    tokens = conversation(use_previous_response_id=True)[-1].usage_metadata["input_tokens"]
    equal(tokens > with_tools().invoke(WHALE.prompt).usage_metadata["input_tokens"], True)


def own_items():
    """Nothing is kept; all items go back, with thoughts in a form that is not for the client to read."""
    said = conversation(store=False, include=["reasoning.encrypted_content"], output_version="responses/v1")
    equal(bool(said[0].content[0]["encrypted_content"]), True)


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
