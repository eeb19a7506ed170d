"""instructor, which asks for objects only, in its modes of tools, JSON schemas and JSON."""

import instructor
import openai
from pydantic import BaseModel
from report import ADA, ANCHOR, FERRY, FILE, LEDGER, DoesNotApply, equal, model, report, url, while_killing


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


class write_file(BaseModel):
    """Write a text file."""

    path: str
    content: str


def ask(mode, answer, kind, how="create"):
    client = instructor.from_openai(openai.OpenAI(base_url=url(), api_key="none", max_retries=0), mode=mode)
    messages = [{"role": "user", "content": answer.prompt}]
    create = getattr(client.chat.completions, how)
    return create(model=model(), messages=messages, response_model=kind, max_retries=0, max_tokens=600)


def only_objects():
    raise DoesNotApply("asks for objects only")


def tools():
    equal(ask(instructor.Mode.TOOLS, ANCHOR, Person).model_dump(), ADA)


def streamed():
    parts = [part.model_dump() for part in ask(instructor.Mode.TOOLS, LEDGER, write_file, "create_partial")]
    equal(parts[-1], FILE)
    equal(len(parts) > 20, True)


def killed():
    """The client shows parts late: the call's tokens are counted."""
    while_killing(streamed)


def schema():
    equal(ask(instructor.Mode.JSON_SCHEMA, FERRY, Person).model_dump(), ADA)
    equal(ask(instructor.Mode.TOOLS_STRICT, ANCHOR, Person).model_dump(), ADA)


def json_object():
    equal(ask(instructor.Mode.JSON, FERRY, Person).model_dump(), ADA)


report(
    **{
        **dict.fromkeys(("plain", "stream", "usage"), only_objects),
        "tools": tools,
        "tools_stream": streamed,
        "loop": only_objects,
        "required": tools,
        "schema": schema,
        "json": json_object,
        **dict.fromkeys(("thinking", "logprobs"), only_objects),
        "killed": killed,
    }
)
