"""The package `openai`: embeddings."""

from array import array

import openai
from pooled import EMBEDDER, SIZE, TEXTS, close, post, vectors
from report import DoesNotApply, equal, report, url


def embed(texts, **more):
    """By default the client asks for base64, and makes numbers of it."""
    client = openai.OpenAI(base_url=url(), api_key="none", max_retries=0, timeout=120)
    return client.embeddings.create(model=EMBEDDER, input=texts, **more)


def read(answer):
    equal([entry.index for entry in answer.data], list(range(len(answer.data))))
    return [entry.embedding for entry in answer.data]


def vector():
    answer = embed(TEXTS[0])
    close(read(answer), vectors(TEXTS[:1]))
    equal(answer.usage.prompt_tokens, post("/embeddings", model=EMBEDDER, input=TEXTS[0])["usage"]["prompt_tokens"])


def several():
    close(read(embed(TEXTS)), vectors(TEXTS))


def encodings():
    both = [read(embed(TEXTS, encoding_format="float")), read(embed(TEXTS))]
    as_float32 = [[array("f", vector) for vector in each] for each in both]
    equal(as_float32[0], as_float32[1])
    equal(isinstance(read(embed(TEXTS, encoding_format="base64"))[0], str), True)


def dimensions():
    close(read(embed(TEXTS, dimensions=SIZE)), vectors(TEXTS, dimensions=SIZE))


def token_ids():
    close(read(embed([[5, 6, 7], [8, 9]])), vectors([[5, 6, 7], [8, 9]]))


def no_ranking():
    raise DoesNotApply("has embeddings only")


report(vector, several, encodings, dimensions, token_ids, ranking=no_ranking, top_n=no_ranking)
