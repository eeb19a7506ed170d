"""Note which fields and parts of requests are ignored or left out, and log each once for a client."""

from collections.abc import Iterable, Sequence

from common.logging import get_logger
from scheduler_svc.frontend_options import FrontendOptions

log = get_logger(__name__)

MAX_NAMES = 32  # of one body; a name more would say nothing new
MAX_NAME_CHARACTERS = 64
MAX_KNOWN = 4096  # names with their clients; what comes after them is counted, and not logged
# Where they stand, what is inside of another place first. Counts are by these: names are clients', and have no end.
PLACES = (
    *("messages.tool_calls.function", "messages.tool_calls", "messages.content", "messages"),
    *("tools.function", "tools", "system", "context_management.edits"),
)


class IgnoredNames:
    """Names of what is ignored in one body. Validation gets it as its context, and adds what it leaves out.

    Args:
        options: say what is left out instead of refused, and how many tools a request may have.
    """

    def __init__(self, options: FrontendOptions) -> None:
        self.options = options
        self._names: dict[str, None] = {}
        self._parts: dict[str, None] = {}

    def add(self, place: str, names: Iterable[str]) -> None:
        """Fields of an object at this place in the body, such as `messages.content`; the body itself is ""."""
        for name in names:
            if len(self._names) == MAX_NAMES:
                return
            short = name[:MAX_NAME_CHARACTERS]
            self._names[f"{place}.{short}" if place else short] = None

    def leave_out(self, place: str, kind: str) -> None:
        """Note a part that means something to the client, such as an image among `messages.content`. The answer's
        header `x-baton-left-out` names it.

        Args:
            kind: in ASCII, and one of a few: it is sent back.
        """
        self._parts[f"{place}[{kind}]"] = None

    def names(self) -> tuple[str, ...]:
        """Return all that is ignored, in its order."""
        return (*self._parts, *self._names)

    def left_out(self) -> tuple[str, ...]:
        """Return the parts among them."""
        return tuple(self._parts)


def place_of(name: str) -> str:
    """Where a field stands; "request" for the body itself.

    Args:
        name: of `IgnoredNames.names`.
    """
    return next((place for place in PLACES if name.startswith((f"{place}.", f"{place}["))), "request")


class IgnoredFields:
    """Logs the fields that were ignored, each once for each client."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def log(self, client: str, names: Sequence[str]) -> None:
        """Fields of one request.

        Args:
            client: name of the API key that it came with, empty without keys.
        """
        new = [name for name in names if (client, name) not in self._known]
        if new and len(self._known) + len(new) <= MAX_KNOWN:
            self._known.update((client, name) for name in new)
            for name in new:
                log.info("field ignored", client=client, field=name)
