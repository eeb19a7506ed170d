"""pydantic-ai's agents, on chat completions and on Responses."""

import os

from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    NativeOutput,
    PartDeltaEvent,
    PromptedOutput,
    ThinkingPart,
    ToolCallPart,
    ToolCallPartDelta,
    capture_run_messages,
)
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from report import (
    ADA,
    COMPASS,
    FERRY,
    FILE,
    HARBOR,
    ISLANDS,
    LANTERN,
    LEDGER,
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
    """What FERRY and COMPASS answer."""

    name: str
    age: int


def agent(**asked):
    kind = OpenAIResponsesModel if ON_RESPONSES else OpenAIChatModel
    chat = kind(model(), provider=OpenAIProvider(base_url=url(), api_key="none"))
    return Agent(chat, model_settings={"max_tokens": 600, **asked.pop("settings", {})}, retries=0, **asked)


def with_tools(**settings):
    """Its tools, and what they were called with."""
    calls = []
    one = agent(settings=settings)

    @one.tool_plain
    def get_weather(city: str) -> str:
        """Tell the weather."""
        calls.append(city)
        return "18" if city == "Oslo" else "14"

    @one.tool_plain
    def write_file(path: str, content: str) -> str:
        """Write a text file."""
        calls.append({"path": path, "content": content})
        return "written"

    return one, calls


def plain():
    equal(agent().run_sync(HARBOR.prompt).output, HARBOR.plain)


async def stream():
    async with agent().run_stream(HARBOR.prompt) as run:
        equal("".join([text async for text in run.stream_text(delta=True)]), HARBOR.plain)


async def usage():
    whole = (await agent().run(WHALE.prompt)).usage
    async with agent().run_stream(WHALE.prompt) as run:
        await run.get_output()
    streamed = run.usage
    counts = [each() if callable(each) else each for each in (whole, streamed)]
    equal(counts[1].output_tokens, counts[0].output_tokens)


def tools():
    one, calls = with_tools()
    equal(one.run_sync(ISLANDS.prompt).output, ISLANDS.result)
    equal(sorted(calls), ["Bergen", "Oslo"])


def loop():
    one, calls = with_tools()
    equal((one.run_sync(LANTERN.prompt).output, calls), (said_in(LANTERN.result), ["Oslo"]))


async def streamed(kill=False):
    one, calls = with_tools()
    pieces = 0
    async with one.iter(LEDGER.prompt) as run:
        async for node in run:
            if not Agent.is_model_request_node(node):
                continue
            async with node.stream(run.ctx) as events:
                async for event in events:
                    pieces += isinstance(event, PartDeltaEvent) and isinstance(event.delta, ToolCallPartDelta)
                    if kill and pieces == 5:
                        pieces += 1
                        kill_the_executor()
    equal((run.result.output, calls), (LEDGER.result, [FILE]))
    equal(pieces > 10, True)


def required():
    """An object as the arguments of a call that must come."""
    with capture_run_messages() as messages:
        equal(agent(output_type=Person).run_sync(COMPASS.prompt).output.model_dump(), ADA)
    equal(any(isinstance(part, ToolCallPart) for message in messages for part in message.parts), True)


def schema():
    equal(agent(output_type=NativeOutput(Person)).run_sync(FERRY.prompt).output.model_dump(), ADA)


def json_object():
    equal(agent(output_type=PromptedOutput(Person)).run_sync(FERRY.prompt).output.model_dump(), ADA)


def thinking():
    summary = {"openai_reasoning_summary": "auto"} if ON_RESPONSES else {}
    result = agent(settings=summary).run_sync(WHALE.prompt)
    thoughts = [part for message in result.all_messages() for part in message.parts if isinstance(part, ThinkingPart)]
    equal(
        (result.output, [part.content.strip() for part in thoughts]), (said_in(WHALE.plain), [thought_of(WHALE.plain)])
    )


def logprobs():
    settings = {"openai_logprobs": True, "openai_top_logprobs": 2}
    message = agent(settings=settings).run_sync(HARBOR.prompt).all_messages()[-1]
    details = message.parts[0].provider_details if ON_RESPONSES else message.provider_details
    equal(spelled(details["logprobs"]), HARBOR.plain)


def conversation(**settings):
    """A call and its result, and a question afterwards; the number of tokens of the last prompt."""
    one, calls = with_tools(**settings)
    first = one.run_sync(LANTERN.prompt)
    equal((first.output, calls), (said_in(LANTERN.result), ["Oslo"]))
    second = one.run_sync(WHALE.prompt, message_history=first.all_messages())
    equal(second.output, said_in(WHALE.plain))
    return second.new_messages()[-1].usage.input_tokens


def goes_on():
    """The client leaves out what an earlier response has, and names that."""
    tokens = conversation(openai_previous_response_id="auto")
    one, _ = with_tools()
    equal(tokens > one.run_sync(WHALE.prompt).new_messages()[-1].usage.input_tokens, True)


def own_items():
    """Nothing is kept; all items go back."""
    conversation(openai_store=False)


def background():
    """The client asks for the answer until it is there."""
    one, calls = with_tools(openai_background=True)
    equal((one.run_sync(LANTERN.prompt).output, calls), (said_in(LANTERN.result), ["Oslo"]))


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
        "background": background,
        **dict.fromkeys(("references", "input_items", "resumed", "cancel", "delete"), no_such),
    }
)
