"""Health check of an executor's container: exit code 0 while it is connected to the scheduler.

    python -S executor_health.py [PORT]

An executor connects once its model is loaded and warm, and ends itself if the scheduler rejects it, so an established
connection to the scheduler's executor port (5555) stands for a place in the fleet. It is looked up in /proc: no
dependencies, no network, a few milliseconds.
"""

import sys
from pathlib import Path

ESTABLISHED = "01"


def is_connected(port: int, tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")) -> bool:
    """Whether the kernel's tables of TCP connections have an established one to `port` of any host."""
    for table in tables:
        for line in Path(table).read_text().splitlines()[1:] if Path(table).exists() else ():
            _, _, remote, state, *_ = line.split()
            if state == ESTABLISHED and int(remote.rpartition(":")[2], 16) == port:
                return True
    return False


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 5555
    if not is_connected(port):
        sys.exit(f"not connected to the scheduler (port {port})")
