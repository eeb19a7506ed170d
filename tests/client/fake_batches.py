"""The part of the fake server that keeps files and runs batches."""

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

FILE_FIELDS = ("input_file_id", "output_file_id", "error_file_id")


@dataclass
class Made:
    """The batch is made, or not, and the connection breaks instead of an answer."""

    is_made: bool = True


@dataclass
class FakeBatches:
    """Files and batches in memory.

    Attributes:
        script: what to do with the next requests for a batch: `Made`, or an error's status.
        delay_s: between making a batch and its answer.
        is_held: whether batches go on without an end.
        status: how they end.
        without: custom_ids of lines that get no result.
        files: content by id.
        made: batches by id.
        deleted: ids of files, in order.
        num_uploads: that came.
    """

    script: deque = field(default_factory=deque)
    delay_s: float = 0.0
    is_held: bool = False
    status: str = "completed"
    without: set = field(default_factory=set)
    files: dict = field(default_factory=dict)
    made: dict = field(default_factory=dict)
    deleted: list = field(default_factory=list)
    num_uploads: int = 0

    def add_to(self, app: FastAPI) -> None:
        """Serve them."""
        app.post("/v1/files")(self._upload)
        app.get("/v1/files/{file_id}/content")(self._content)
        app.delete("/v1/files/{file_id}")(self._delete)
        app.post("/v1/batches")(self._create)
        app.get("/v1/batches")(self._page)
        app.get("/v1/batches/{batch_id}")(self._retrieve)

    async def _upload(self, request: Request):
        form = await request.form()
        self.num_uploads += 1
        return {"id": self._keep(await form["file"].read())}

    async def _content(self, file_id: str):
        return Response(self.files[file_id]) if file_id in self.files else _error(404, f"There is no file '{file_id}'.")

    async def _delete(self, file_id: str):
        self.deleted.append(file_id)
        self.files.pop(file_id, None)
        return {}

    async def _create(self, request: Request):
        asked = await request.json()
        action = self.script.popleft() if self.script else None
        if isinstance(action, int):
            return _error(action, "no such batches")
        if asked["input_file_id"] not in self.files:
            return _error(404, f"There is no file '{asked['input_file_id']}'.")
        batch = {}
        if action is None or action.is_made:
            batch = self.make(asked)
        await asyncio.sleep(self.delay_s)
        return _Broken() if action else batch

    async def _page(self, limit: int, after: str = ""):
        ids = list(self.made)[::-1]
        rest = ids[ids.index(after) + 1 :] if after else ids
        page = rest[: min(limit, 2)]  # short ones, so that there are some
        return {"data": [self.made[one] for one in page], "last_id": page[-1] if page else None,
                "has_more": len(rest) > len(page)}  # fmt: skip

    async def _retrieve(self, batch_id: str):
        if batch_id not in self.made:
            return _error(404, f"There is no batch '{batch_id}'.")
        batch = self.made[batch_id]
        if not self.is_held and batch["status"] == "in_progress":
            self.end(batch)
        return batch

    def make(self, asked):
        """Make a batch that runs. Returns it."""
        batch_id = f"batch_{len(self.made)}"
        self.made[batch_id] = {
            **asked,
            **dict.fromkeys(FILE_FIELDS[1:]),
            "id": batch_id,
            "status": "in_progress",
            "errors": None,
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
        }
        return self.made[batch_id]

    def end(self, batch):
        """Answer its lines."""
        lines = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
        results = [_result(line) for line in lines if line["custom_id"] not in self.without]
        batch["output_file_id"] = self._keep("".join(json.dumps(result) + "\n" for result in results).encode())
        batch["request_counts"] = {"total": len(lines), "completed": len(results), "failed": 0}
        batch["status"] = self.status

    def _keep(self, content):
        file_id = f"file-{len(self.files) + len(self.deleted)}"
        self.files[file_id] = content
        return file_id


class _Broken(Response):
    async def __call__(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        raise ConnectionAbortedError


def _result(line):
    body = {"model": line["body"]["model"], "text": f"answer to {line['body']['prompt']}"}
    response = {"status_code": 200, "request_id": "r", "body": body}
    return {"id": f"batch_req_{line['custom_id']}", "custom_id": line["custom_id"], "response": response, "error": None}


def _error(status, message):
    return JSONResponse({"error": {"message": message, "code": None}}, status)
