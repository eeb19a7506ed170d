"""Streams of a client of services on the pretended GPU, each of which counts its tokens."""

import threading
from typing import Any

NEW_TOKENS = 120


def stream(client: Any, prompt: str, counts: dict[str, int], begun: threading.Semaphore) -> None:
    request = {"model": "baton-demo", "prompt": prompt, "max_tokens": NEW_TOKENS, "stream": True}
    extra = {"ignore_eos": True}
    for number, chunk in enumerate(
        client.completions.create(**request, extra_body=extra, stream_options={"include_usage": True})
    ):
        if number == 0:
            begun.release()
        if chunk.usage is not None:
            counts[prompt] = chunk.usage.completion_tokens
