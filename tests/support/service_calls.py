"""Command lines that start a service by itself: on ports that are free, without a keeper and without a store."""

import socket
from collections.abc import Iterable, Mapping

SCHEDULER = ("baton-scheduler", "--port", "0", "--executor-endpoint", "tcp://127.0.0.1:0", "--no-store")
EXECUTOR = ("baton-executor", "--no-keep")
UP = ("baton", "up", "--no-keep", "--no-store", "--executor-port", "PORT", "--port", "PORT")


def filled(words: Iterable[str], path: str, values: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return a command line with a path in place of PATH, also within a word, values of whole words, and free ports."""
    named = values or {}
    return tuple(_free_port() if word == "PORT" else named.get(word, word).replace("PATH", path) for word in words)


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])
