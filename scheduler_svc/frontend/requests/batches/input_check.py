"""Whether a file can be the input of a batch. Pure."""

from hashlib import blake2b

from scheduler_svc.frontend.answers.batch_objects import BatchError
from scheduler_svc.frontend.requests.batches.input_lines import MAX_LINES, InputLine, LineProblem, read_line

MAX_ERRORS = 100  # that are told
ID_BYTES = 16  # of a hash that stands for a custom_id: the ids themselves could be megabytes


class InputCheck:
    """Takes the lines of an input one after the other, and keeps what is wrong with them.

    Args:
        endpoint: of the batch.
        max_lines: requests of a batch.

    Attributes:
        num_lines: requests so far.
        errors: the first `MAX_ERRORS` of them.
        is_over: whether further lines would change nothing.
    """

    def __init__(self, endpoint: str, *, max_lines: int = MAX_LINES) -> None:
        self.num_lines = 0
        self.errors: list[BatchError] = []
        self._endpoint = endpoint
        self._max_lines = max_lines
        self._seen: set[bytes] = set()

    @property
    def is_over(self) -> bool:
        """Whether there are as many lines as are allowed, and one more, or as many errors as are told."""
        return self.num_lines > self._max_lines or len(self.errors) >= MAX_ERRORS

    def add(self, lines: list[InputLine]) -> None:
        """Look at the next lines."""
        for line in lines:
            if self.is_over:
                return
            self.num_lines += 1
            if self.num_lines > self._max_lines:
                self.errors.append(BatchError("too_many_tasks", f"A batch has at most {self._max_lines} requests."))
                return
            try:
                self._add(line)
            except LineProblem as problem:
                self.errors.append(BatchError(problem.code, problem.message, problem.param, line.place))

    def end(self) -> list[BatchError]:
        """The file has no more lines. Returns all errors; none if it can be used."""
        if not self.num_lines:
            self.errors.append(BatchError("empty_file", "The input file has no requests."))
        return self.errors

    def _add(self, line: InputLine) -> None:
        custom_id = read_line(line.data, self._endpoint).custom_id
        name = blake2b(custom_id.encode(), digest_size=ID_BYTES).digest()
        if name in self._seen:
            message = f"The custom_id '{custom_id[:64]}' is in an earlier line, too; each line needs its own."
            raise LineProblem("duplicate_custom_id", message, "custom_id")
        self._seen.add(name)
