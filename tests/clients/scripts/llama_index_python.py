"""LlamaIndex's OpenAILike, and its agent."""

import json

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from report import (
    ADA,
    ANCHOR,
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
    url,
)


class Person(BaseModel):
    """What ANCHOR calls."""

    name: str
    age: int


def get_weather(city: str) -> str:
    """Tell the weather."""
    return "18" if city == "Oslo" else "14"


def write_file(path: str, content: str) -> str:
    """Write a text file."""
    return f"{len(content)} characters in {path}"


TOOLS = [FunctionTool.from_defaults(get_weather), FunctionTool.from_defaults(write_file)]


def llm(**asked):
    kinds = {"is_chat_model": True, "is_function_calling_model": True}
    where = {"model": model(), "api_base": url(), "api_key": "none", "max_retries": 0, "timeout": 120.0}
    return OpenAILike(**where, **kinds, max_tokens=600, context_window=8000, **asked)


def question(answer):
    return [ChatMessage(role="user", content=answer.prompt)]


def plain():
    equal(llm().chat(question(HARBOR)).message.content, HARBOR.plain)


def stream():
    equal("".join(part.delta or "" for part in llm().stream_chat(question(HARBOR))), HARBOR.plain)


def usage():
    whole = llm().chat(question(WHALE)).raw.usage
    last = list(llm().stream_chat(question(WHALE), stream_options={"include_usage": True}))[-1]
    equal(last.raw.usage.completion_tokens, whole.completion_tokens)


def tools():
    answer = llm().chat_with_tools(TOOLS, user_msg=ISLANDS.prompt, allow_parallel_tool_calls=True)
    calls = llm().get_tool_calls_from_response(answer)
    equal(
        [(call.tool_name, call.tool_kwargs["city"]) for call in calls],
        [("get_weather", "Oslo"), ("get_weather", "Bergen")],
    )


def streamed(kill=False):
    pieces = 0
    for part in llm().stream_chat_with_tools(TOOLS, user_msg=LEDGER.prompt):
        pieces += bool(part.raw.choices and part.raw.choices[0].delta.tool_calls)
        if kill and pieces == 5:
            pieces += 1
            kill_the_executor()
    (call,) = llm().get_tool_calls_from_response(part)
    equal((call.tool_name, call.tool_kwargs), ("write_file", FILE))
    equal(pieces > 10, True)


async def loop():
    agent = FunctionAgent(tools=TOOLS, llm=llm(), streaming=True)
    equal(str(await agent.run(user_msg=LANTERN.prompt)), said_in(LANTERN.result))


def required():
    answer = llm().chat_with_tools(TOOLS, user_msg=HARBOR.prompt, tool_required=True)
    (call,) = llm().get_tool_calls_from_response(answer)
    equal((call.tool_name, call.tool_kwargs), ("get_weather", WEATHER))


def schema():
    """By a call: this client does not ask servers that are not OpenAI's for JSON schemas."""
    equal(llm().as_structured_llm(Person).chat(question(ANCHOR)).raw, Person(**ADA))


def json_object():
    answer = llm(additional_kwargs={"response_format": {"type": "json_object"}}).chat(question(FERRY))
    equal(json.loads(answer.message.content), ADA)


def thinking():
    equal(llm().chat(question(WHALE)).message.content, said_in(WHALE.plain))
    raise DoesNotApply("the answer is apart; the thought is dropped by the client")


def logprobs():
    answer = llm(additional_kwargs={"logprobs": True, "top_logprobs": 2}).chat(question(HARBOR))
    equal("".join(each[0].token for each in answer.logprobs[:3]), "Boats come")


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
