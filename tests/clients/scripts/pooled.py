"""What scripts for embeddings and reranking have in common: texts, and what the server says of them to a plain request.

The models are the demo model's weights under two names, which say nothing; other tests compare numbers with those of
transformers. Here it counts that a client reads what the server has written.
"""

from typing import Any

import httpx
from report import equal, url

EMBEDDER, JUDGE = "embedder", "judge"
TEXTS = ["ROMEO:\nBut, soft!", "What light through yonder window breaks?", "naïve 東京 🐟"]
QUERY = "Who speaks?"
SIZE = 100
"""Of a shortened vector."""
TOLERANCE = 1e-6


def post(path: str, **body: Any) -> dict[str, Any]:
    """What a plain request is answered."""
    answer = httpx.post(f"{url()}{path}", json=body, timeout=120)
    answer.raise_for_status()
    return dict(answer.json())


def vectors(texts: list[Any], **more: Any) -> list[list[float]]:
    """Of each text, asked for alone."""
    return [post("/embeddings", model=EMBEDDER, input=[text], **more)["data"][0]["embedding"] for text in texts]


def close(found: list[Any], wanted: list[Any]) -> None:
    """Complain if vectors are not those that were wanted."""
    equal([len(vector) for vector in found], [len(vector) for vector in wanted])
    for one, other in zip(found, wanted, strict=True):
        if max(abs(a - b) for a, b in zip(one, other, strict=True)) > TOLERANCE:
            raise AssertionError(f"found {one[:3]}..., wanted {other[:3]}...")


def ranked(documents: list[str]) -> list[tuple[int, float]]:
    """Index and score of each document, asked for alone, the best first."""
    scores = [
        post("/rerank", model=JUDGE, query=QUERY, documents=[each])["results"][0]["relevance_score"]
        for each in documents
    ]
    order = sorted(range(len(documents)), key=lambda index: -scores[index])
    return [(index, scores[index]) for index in order]


def documents() -> list[str]:
    """The texts, in an order that is not that of their scores."""
    return [TEXTS[index] for index, _ in reversed(ranked(TEXTS))]


def close_ranking(found: list[tuple[int, float]], wanted: list[tuple[int, float]]) -> None:
    """Complain if a ranking is not what was wanted."""
    equal([index for index, _ in found], [index for index, _ in wanted])
    close([[score for _, score in found]], [[score for _, score in wanted]])
