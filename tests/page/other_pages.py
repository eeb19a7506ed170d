"""Pages of another service on this machine, and what their forms send."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.page.talking import Talk
from tests.support.plain_http import http

UPLOAD = """
<form method=post enctype=multipart/form-data><input name=purpose value=batch><input type=file name=file></form>
"""
# A page cannot choose a file of its reader's, but it can make one.
SEND_FORM = """(url) => {
  const made = new DataTransfer();
  made.items.add(new File(["not the reader's"], "made.jsonl"));
  document.querySelector("[type=file]").files = made.files;
  document.forms[0].action = url;
  document.forms[0].submit();
}"""
NO_ICON = "404.*/favicon.ico"  # of what is no page


@contextlib.contextmanager
def other_service(page):
    """The port of another service on this machine, which has this page everywhere."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(f"<!doctype html><title>Other</title><link rel=icon href=data:,>{page}".encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def files(frontend):
    return [file["filename"] for file in http.get(f"{frontend.url}/v1/files").json()["data"]]


def forget_files(frontend):
    """Delete all of them."""
    for file in http.get(f"{frontend.url}/v1/files").json()["data"]:
        http.delete(f"{frontend.url}/v1/files/{file['id']}").raise_for_status()


def say(visit):
    """Talk on the page, and wait for the whole answer."""
    visit.expects("(404|status 404).*page/requests")  # the core is not a real one
    talk = Talk(visit)
    talk.say("Say it again.")
    talk.wait_for_state()
    assert talk.text()
