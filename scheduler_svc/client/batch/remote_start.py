"""How a batch at the service begins: it is found, if an earlier run has begun it, or is made.

A run may be stopped anywhere. So the note has the upload before there is a batch, and a later run looks whether a batch
was made of it.
"""

import itertools
import tempfile
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import BinaryIO, NamedTuple

import msgspec

from scheduler_svc.client.batch.input import BatchLine
from scheduler_svc.client.batch.note import Note, NoteFile, uploaded_line
from scheduler_svc.client.errors import RequestFailed, WrongFile
from scheduler_svc.client.http.api import Api, Json
from scheduler_svc.client.http.repeating import may_pass
from scheduler_svc.client.interrupts import held_interrupts
from scheduler_svc.client.output import say

WINDOW = "24h"
_PAGE = 100


class Todo(NamedTuple):
    """What is to be answered.

    Attributes:
        lines: that have no result yet, in the order of the input.
        endpoint: of all lines.
        place: of each line in the input, by its custom_id.
        model: of lines that name none.
        digest: of the whole input, with a model.
    """

    lines: Iterable[BatchLine]
    endpoint: str
    place: dict[str, int]
    model: str
    digest: Callable[[str], str]


class RemoteStart:
    """Finds or makes the batch of an input.

    Args:
        url: of the service, for the note.
    """

    def __init__(self, api: Api, note: NoteFile, url: str) -> None:
        self._api = api
        self._note = note
        self._url = url

    def batch(self, todo: Todo) -> Json:
        """The batch of an earlier run whose results have not been fetched, or a new one.

        Raises:
            WrongFile: there is one of an earlier run, and it is not of this input, model or service.
            RequestFailed: the service refuses the batch; it has nothing of it then.
        """
        note = self._note.read()
        batch = None
        if note is not None:
            batch = self._noted(note, todo) if note.batch_id is not None else self._of_upload(note, todo)
        return batch or self._new(todo)

    def seen(self, batch_id: str) -> Json:
        """A batch as it is now."""
        return self._api.get_json(f"/v1/batches/{batch_id}")

    # --- of an earlier run ---

    def _noted(self, note: Note, todo: Todo) -> Json | None:
        """The batch that the note names; None if the service has forgotten it."""
        batch_id = str(note.batch_id)
        self._check(note, batch_id, todo)
        try:
            batch = self._api.patiently(lambda: self.seen(batch_id))
        except RequestFailed as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            if note.url != self._url:
                raise WrongFile(self._elsewhere(note, batch_id)) from error
            say(f"{batch_id} is not there any more; the lines that have no result are sent again")
            return None
        say(f"going on with {batch_id}, which is {batch['status']}")
        return batch

    def _of_upload(self, note: Note, todo: Todo) -> Json | None:
        """The batch of an upload, found or made; None if the upload is of no use."""
        batch = self._api.patiently(lambda: self._found(note.input_file_id))
        if batch is not None:
            self._check(note, batch["id"], todo)
            self._note.write(msgspec.structs.replace(note, batch_id=batch["id"]))
            say(f"going on with {batch['id']}, which is {batch['status']}")
            return batch
        if note.url != self._url:
            raise WrongFile(self._elsewhere(note, f"the upload {note.input_file_id}"))
        if note.input_digest != todo.digest(todo.model):
            self._forget_upload(note)
            return None
        try:
            return self._made(note, todo.endpoint)
        except RequestFailed as error:
            if error.status == HTTPStatus.NOT_FOUND:  # the upload
                return None
            raise

    def _found(self, input_file_id: str) -> Json | None:
        """The batch that was made of a file, if any."""
        after, has_more = "", True
        while has_more:
            page = self._api.get_json(f"/v1/batches?limit={_PAGE}{after}")
            for batch in page["data"]:
                if batch["input_file_id"] == input_file_id:
                    return dict(batch)
            after, has_more = f"&after={page['last_id']}", page["has_more"] and bool(page["data"])
        return None

    def _check(self, note: Note, batch_id: str, todo: Todo) -> None:
        """Raise WrongFile if the batch has other lines than the input."""
        if note.input_digest == todo.digest(todo.model):
            return
        if note.input_digest == todo.digest(note.model):
            why = f"it is for the model {note.model!r}, and this run for {todo.model!r}"
            then = f"Add --model {note.model} to fetch its results"
        else:
            why = "the input has changed since it was sent"
            then = "Put the earlier input back to fetch its results"
        raise WrongFile(
            f"{self._note.path} says that the service runs {batch_id} for this output, but {why}. {then}; or delete "
            f"{self._note.path}, and the same command sends all lines that have no result ({batch_id} goes on)"
        )

    def _elsewhere(self, note: Note, what: str) -> str:
        return (
            f"{self._note.path} is about {what} of {note.url}, which {self._url} does not have. Add --url {note.url}; "
            f"or delete {self._note.path}, and the same command sends the lines that have no result"
        )

    # --- a new one ---

    def _new(self, todo: Todo) -> Json:
        """Upload the lines, and have a batch made of them."""
        with tempfile.TemporaryFile() as file:
            for line in todo.lines:
                file.write(uploaded_line(line, todo.model))
            file_id = self._api.patiently(lambda: self._uploaded(file))
        note = Note(self._url, file_id, todo.digest(todo.model), todo.model)
        try:
            self._note.write(note)
        except WrongFile:
            self._forget_upload(note)
            raise
        return self._made(note, todo.endpoint)

    def _uploaded(self, file: BinaryIO) -> str:
        file.seek(0)
        return str(self._api.upload("/v1/files", {"purpose": "batch"}, file)["id"])

    def _made(self, note: Note, endpoint: str) -> Json:
        """A batch of an upload that the note has. If the service refuses the batch, it forgets the upload."""
        asked = {"input_file_id": note.input_file_id, "endpoint": endpoint, "completion_window": WINDOW}
        attempts = itertools.count()

        def make() -> Json:
            is_first = next(attempts) == 0
            batch = None if is_first else self._found(note.input_file_id)  # an answer that broke off may have said so
            with held_interrupts():
                batch = batch or self._posted(note, asked)
                self._note.write(msgspec.structs.replace(note, batch_id=batch["id"]))
            return batch

        return self._api.patiently(make)

    def _posted(self, note: Note, asked: Json) -> Json:
        try:
            return self._api.post("/v1/batches", asked)
        except RequestFailed as error:
            is_refusal = 400 <= error.status < 500 or error.status == HTTPStatus.INSUFFICIENT_STORAGE
            if is_refusal and not may_pass(error):
                self._forget_upload(note)
            raise

    def _forget_upload(self, note: Note) -> None:
        self._note.forget()
        self._api.delete_quietly(f"/v1/files/{note.input_file_id}")
