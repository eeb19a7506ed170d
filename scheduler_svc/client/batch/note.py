"""The file beside the output that says which batch of the service has the input's lines, so that a second run of the
same command goes on with it.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from scheduler_svc.client.batch.input import BatchLine
from scheduler_svc.client.errors import WrongFile


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A batch of the service, or a file there that was uploaded for one.

    Attributes:
        url: of the service.
        input_file_id: of the upload.
        input_digest: of the whole input, as `input_digest` makes it with `model`.
        model: of lines that name none.
        batch_id: None before the service has said that there is a batch.
    """

    url: str
    input_file_id: str
    input_digest: str
    model: str
    batch_id: str | None = None


class NoteFile:
    """Reads and writes the note of an output, which is locked against a second run.

    Attributes:
        path: of the note.
    """

    def __init__(self, out_path: Path) -> None:
        self.path = out_path.with_name(out_path.name + ".batch")

    def read(self) -> Note | None:
        """The note, if there is one.

        Raises:
            WrongFile: the file is something else.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Note)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WrongFile(f"{self.path} cannot be read: {error.strerror}") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WrongFile(
                f"{self.path} should say which batch of the service has the lines, and does not: {error}. "
                f"Delete {self.path}, and the same command sends the lines that have no result"
            ) from error

    def write(self, note: Note) -> None:
        """Put a note in the place of the one before, whole or not at all.

        Raises:
            WrongFile: it cannot be written.
        """
        beside = self.path.with_name(self.path.name + ".new")
        try:
            with beside.open("wb") as file:
                file.write(msgspec.json.encode(note))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
        except OSError as error:
            raise WrongFile(f"{self.path} cannot be written: {error.strerror}") from error

    def forget(self) -> None:
        """Remove the note."""
        self.path.unlink(missing_ok=True)


def uploaded_line(line: BatchLine, model: str) -> bytes:
    """A line of the input as the service gets it."""
    body = {"model": model, **line.body}
    asked = {"custom_id": line.custom_id, "method": line.method, "url": line.url, "body": body}
    return msgspec.json.encode(asked) + b"\n"


def input_digest(lines: Iterable[BatchLine], model: str) -> str:
    """A hash of all that decides about the results: the lines as they are uploaded."""
    digest = hashlib.blake2b(digest_size=16)
    for line in lines:
        digest.update(uploaded_line(line, model))
    return digest.hexdigest()
