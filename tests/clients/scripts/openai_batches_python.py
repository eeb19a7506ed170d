"""The package `openai`: files and batches."""

import json

import openai
from pooled import EMBEDDER, TEXTS, close, vectors
from report import (
    FILE,
    HARBOR,
    LEDGER,
    TOOLS,
    WHALE,
    equal,
    kill_the_executor,
    model,
    refused,
    report,
    said_in,
    url,
)

from tests.support.eventually import eventually

CHATS, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
ENDED = ("completed", "failed", "expired", "cancelled")


def client():
    """Without retries: a failure is to be seen."""
    return openai.OpenAI(base_url=url(), api_key="none", max_retries=0, timeout=120)


def upload(content, **more):
    return client().files.create(file=("lines.jsonl", content), purpose="batch", **more)


def chat(answer, **more):
    return {"model": model(), "messages": [{"role": "user", "content": answer.prompt}], "max_tokens": 600, **more}


def create(bodies, endpoint=CHATS, **more):
    lines = [
        {"custom_id": f"line {index}", "method": "POST", "url": endpoint, "body": body}
        for index, body in enumerate(bodies)
    ]
    uploaded = upload("\n".join(map(json.dumps, lines)).encode())
    return client().batches.create(input_file_id=uploaded.id, endpoint=endpoint, completion_window="24h", **more)


def ended(batch):
    """The batch, when it has."""
    return eventually(lambda: (found := client().batches.retrieve(batch.id)).status in ENDED and found)


def results(file_id):
    """Ids of lines and what they were answered."""
    rows = map(json.loads, client().files.content(file_id).text.splitlines())
    return [(row["custom_id"], row["response"]["status_code"], row["response"]["body"]) for row in rows]


def files():
    """A file is there, is listed, has its bytes, and goes."""
    content = b'{"a": "na\xc3\xafve"}\n'
    first, second = upload(content), upload(b"{}", expires_after={"anchor": "created_at", "seconds": 3600})
    equal((first.bytes, first.filename, first.purpose), (len(content), "lines.jsonl", "batch"))
    equal(client().files.retrieve(first.id).id, first.id)
    equal(client().files.content(first.id).read(), content)
    listed = [each.id for each in client().files.list(limit=1)]
    equal([each for each in listed if each in (first.id, second.id)], [second.id, first.id])
    for each in (first, second):
        equal(client().files.delete(each.id).deleted, True)
    refused(openai.NotFoundError, lambda: client().files.content(first.id))


def batch():
    """Chats of a file."""
    asked = create([chat(HARBOR), chat(WHALE)], metadata={"what": "two"})
    found = ended(asked)
    equal((found.status, found.request_counts.completed, found.metadata), ("completed", 2, {"what": "two"}))
    told = [
        (name, status, body["choices"][0]["message"]["content"]) for name, status, body in results(found.output_file_id)
    ]
    equal(told, [("line 0", 200, HARBOR.plain), ("line 1", 200, said_in(WHALE.plain))])


def bad_lines():
    """A line that asks for what is not there fails alone."""
    found = ended(create([chat(WHALE), chat(WHALE, temperature=9)]))
    equal((found.status, found.request_counts.completed, found.request_counts.failed), ("completed", 1, 1))
    ((name, status, body),) = results(found.error_file_id)
    equal((name, status, body["error"]["param"]), ("line 1", 400, "temperature"))


def embeddings():
    """Vectors of a file."""
    found = ended(create([{"model": EMBEDDER, "input": text} for text in TEXTS], EMBEDDINGS))
    close([body["data"][0]["embedding"] for _, _, body in results(found.output_file_id)], vectors(TEXTS))


def completions():
    """Texts that go on, of a file."""
    bodies = [{"model": model(), "prompt": [text], "max_tokens": 5, "temperature": 0} for text in TEXTS]
    found = ended(create(bodies, COMPLETIONS))
    wanted = [client().completions.create(**body).choices[0].text for body in bodies]
    equal([body["choices"][0]["text"] for _, _, body in results(found.output_file_id)], wanted)


def listed():
    """Batches, the youngest first, a page at a time."""
    made = [ended(create([chat(WHALE)])).id for _ in range(2)]
    pages = client().batches.list(limit=1)
    equal((pages.data[0].id, pages.has_more), (made[1], True))
    equal([each.id for each in pages][:2], made[::-1])


def cancel():
    """What was done until then is there."""
    asked = create([chat(WHALE), *(chat(WHALE, max_tokens=12_000, ignore_eos=True) for _ in range(8))])
    eventually(lambda: client().batches.retrieve(asked.id).request_counts.completed)
    equal(client().batches.cancel(asked.id).status, "cancelling")
    found = ended(asked)
    equal((found.status, found.request_counts.completed), ("cancelled", 1))
    equal([name for name, _, _ in results(found.output_file_id)], ["line 0"])


def killed():
    """The executor is killed while it computes lines: each has its answer, once."""
    asked = create([chat(LEDGER, tools=TOOLS) for _ in range(6)])
    kill_the_executor(num_tokens=200)
    found = ended(asked)
    lines = results(found.output_file_id)
    calls = [body["choices"][0]["message"]["tool_calls"] for _, _, body in lines]
    equal([json.loads(call["function"]["arguments"]) for (call,) in calls], [FILE] * 6)
    equal([name for name, _, _ in lines], [f"line {index}" for index in range(6)])


report(files, batch, bad_lines, embeddings, completions, listed, cancel, killed)
