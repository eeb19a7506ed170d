"""Health check of a keeper's container: exit code 0 if the keeper answers.

    python -S keeper_health.py SOCKET

It asks what `baton keeper status` asks, without the second that the imports of that command take.
"""

import socket
import sys

QUERY = b"\x91\xackeeper_query"
"""`common.messages.KeeperQuery`, as it is sent."""
TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 2**17


def complaint(path: str) -> str | None:
    """What is wrong with the keeper; None if it is healthy."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(TIMEOUT_S)
        try:
            asking.connect(path)
            asking.send(QUERY)
            answer = asking.recv(MAX_ANSWER_BYTES)
        except OSError as error:
            return f"no keeper at {path}: {error}"
    return None if answer else f"the keeper at {path} closed the connection"


if __name__ == "__main__":
    sys.exit(complaint(*sys.argv[1:]))
