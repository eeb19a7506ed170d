"""TCP keep-alive: a host that vanished silently is noticed while a command waits for its answer."""

import socket

# Seconds idle, seconds between probes, probes: a dead peer is a broken connection after 25 s, which a command can
# survive, instead of silence until --timeout. (macOS has other names for some, and keeps its defaults.)
_DETAILS = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))

KEEPALIVE_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _DETAILS if hasattr(socket, name)),
]
