"""The package `openai`: responses that the server keeps, and those in the background."""

import json

import openai
from report import (
    FILE,
    FLAT_TOOLS,
    LANTERN,
    LEDGER,
    WHALE,
    equal,
    kill_the_executor,
    model,
    refused,
    report,
    said_in,
    thought_of,
    url,
)

from tests.support.eventually import eventually

WITHOUT_END = {"extra_body": {"ignore_eos": True}, "max_output_tokens": 12_000}


def responses():
    """Without retries: a failure is to be seen."""
    return openai.OpenAI(base_url=url(), api_key="none", max_retries=0, timeout=120).responses


def ask(answer, **more):
    """The answer's prompt."""
    return responses().create(**{"model": model(), "input": answer.prompt, "max_output_tokens": 600, **more})


def call_of(response):
    (call,) = [item for item in response.output if item.type == "function_call"]
    return call


def result_of(call):
    return {"type": "function_call_output", "call_id": call.call_id, "output": "18"}


def goes_on():
    """A result alone goes back, with the id of what it answers; then a question that goes on from that."""
    first = ask(LANTERN, tools=FLAT_TOOLS)
    more = {"input": [result_of(call_of(first))], "tools": FLAT_TOOLS}
    second = ask(LANTERN, previous_response_id=first.id, **more)
    equal((second.output_text, second.previous_response_id), (said_in(LANTERN.result), first.id))
    third = ask(WHALE, previous_response_id=second.id, tools=FLAT_TOOLS)
    equal(third.output_text, said_in(WHALE.plain))
    equal(third.usage.input_tokens > ask(WHALE, tools=FLAT_TOOLS).usage.input_tokens, True)
    equal(third.usage.input_tokens_details.cached_tokens > 0, True)


def own_items():
    """Nothing is kept; the client has all items, and the thought in a form that is not for it to read."""
    unkept = {"tools": FLAT_TOOLS, "store": False, "include": ["reasoning.encrypted_content"]}
    first = ask(LANTERN, **unkept)
    (thought,) = [item for item in first.output if item.type == "reasoning"]
    equal(bool(thought.encrypted_content), True)
    said = [{"role": "user", "content": LANTERN.prompt}, *first.output, result_of(call_of(first))]
    equal(ask(LANTERN, **unkept, input=said).output_text, said_in(LANTERN.result))
    refused(openai.NotFoundError, lambda: responses().retrieve(first.id))


def references():
    """Ids of items instead of items."""
    first = ask(LANTERN, tools=FLAT_TOOLS)
    names = [{"type": "item_reference", "id": item.id} for item in first.output]
    said = [{"role": "user", "content": LANTERN.prompt}, *names, result_of(call_of(first))]
    equal(ask(LANTERN, input=said, tools=FLAT_TOOLS).output_text, said_in(LANTERN.result))


def input_items():
    """What a response answers, a page at a time."""
    said = [{"role": "user", "content": text} for text in ("One.", "Two.", WHALE.prompt)]
    page = responses().input_items.list(ask(WHALE, input=said).id, limit=2, order="asc")
    equal((len(page.data), page.has_more), (2, True))
    equal([item.content[0].text for item in page], ["One.", "Two.", WHALE.prompt])


def background():
    """A call that goes on without its client, and is asked for until it is there."""
    first = ask(LEDGER, tools=FLAT_TOOLS, background=True)
    equal((first.status, first.output), ("queued", []))
    kill_the_executor()
    last = eventually(lambda: (found := responses().retrieve(first.id)).status == "completed" and found)
    equal(json.loads(call_of(last).arguments), FILE)


def resumed():
    """The connection breaks after some events; the others come, and the same again later."""
    begun = []
    with ask(LEDGER, tools=FLAT_TOOLS, background=True, stream=True) as events:
        for event in events:
            begun.append(event)
            if len(begun) == 60:
                break
    response_id, after = begun[0].response.id, begun[-1].sequence_number
    rest = []
    for event in responses().retrieve(response_id, stream=True, starting_after=after):
        rest.append(event)
        if len(rest) == 20:
            kill_the_executor()
    equal([event.sequence_number for event in begun + rest], list(range(len(begun + rest))))
    whole = list(responses().retrieve(response_id, stream=True))
    equal([event.model_dump() for event in whole], [event.model_dump() for event in begun + rest])
    written = "".join(event.delta for event in whole if event.type == "response.function_call_arguments.delta")
    equal((whole[-1].type, json.loads(written)), ("response.completed", FILE))


def cancel():
    """What was begun in the background is ended."""
    first = ask(WHALE, background=True, **WITHOUT_END)
    equal(responses().cancel(first.id).status, "cancelled")
    equal(responses().retrieve(first.id).status, "cancelled")


def delete():
    """It is there, and is gone."""
    first = ask(WHALE)
    kept = responses().retrieve(first.id)
    equal((kept.output_text, kept.output[0].content[0].text.strip()), (first.output_text, thought_of(WHALE.plain)))
    responses().delete(first.id)
    refused(openai.NotFoundError, lambda: responses().retrieve(first.id))


report(goes_on, own_items, references, input_items, background, resumed, cancel, delete)
