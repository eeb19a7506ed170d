"""Stand-ins for both services that `LocalFleet` starts: no model, started in a tenth of a second.

    python fake_services.py scheduler --host H --port P --executor-endpoint E [--exit CODE]
    python fake_services.py executor --scheduler E --name NAME [--exit CODE]

Each writes its command line and how it ends to stdout. The scheduler's `/ready` answers 200 as soon as it serves.
"""

import argparse
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()

    def log_message(self, *args):
        pass


def say(*words):
    """Write a line at once: services share a pipe, and with PYTHONUNBUFFERED `print` writes a line word by word."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--exit", type=int, help="exit with this code at once")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    options, _passed_on = parser.parse_known_args()
    told: list[int] = []  # no Event: a handler that sets one while the main thread waits for it may wait for ever
    signal.signal(signal.SIGTERM, lambda number, _: None if options.deaf else told.append(number))
    say("sees GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"))
    say(options.role, *sys.argv[2:])  # from here on it can be told to stop
    if options.exit is not None:
        say("ValueError: no such thing")
        sys.exit(options.exit)
    if options.role == "scheduler":
        server = ThreadingHTTPServer((options.host, options.port), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    while not told:
        time.sleep(0.02)
    say(options.role, "stops")


if __name__ == "__main__":
    main()
