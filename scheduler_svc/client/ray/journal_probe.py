"""Whether all nodes see the folder that the journal lies in: a scheduler can move only where they do."""

import secrets
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_TIMEOUT_S = 15.0  # a node that does not answer, as where a file system hangs, does not see it


class JournalProbe:
    """Writes a file beside the journal on one node, and looks for it on the others. Methods return at once.

    Args:
        journal: its path; None if it is where only one node can see it, or if there is none.

    Attributes:
        blind: addresses of nodes that do not see it; None until it is known.
    """

    def __init__(self, journal: str | None) -> None:
        self.blind: list[str] | None = None
        self._mark = None if journal is None else Path(journal).parent / f".baton-seen-{secrets.token_hex(8)}"
        self._nodes: dict[str, str] = {}
        self._written: Any = None
        self._looks: dict[str, Any] = {}
        self._began_s = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether every node sees it, as far as is known."""
        return self.blind == []

    def see(self, nodes: dict[str, str], scheduler_node: str, now_s: float) -> None:
        """Look again if there are other nodes than last time.

        Args:
            nodes: addresses by node id.
        """
        if self._mark is None or scheduler_node not in nodes:
            return
        is_late = now_s >= self._began_s + _TIMEOUT_S
        if self._written is None and not self._looks and nodes != self._nodes:
            self._nodes, self._began_s = dict(nodes), now_s
            self._written = _on(scheduler_node, _write, str(self._mark))
        elif self._written is not None and (is_late or ray.wait([self._written], timeout=0)[0]):
            self._written = None
            self._looks = {node: _on(node, _sees, str(self._mark)) for node in self._nodes}
        elif self._looks and (is_late or not _missing(self._looks)):
            missing = _missing(self._looks)
            self.blind = [
                self._nodes[node] for node, look in self._looks.items() if look in missing or not _answer(look)
            ]
            self._looks = {}
            _on(scheduler_node, _remove, str(self._mark))


def _on(node: str, function: Any, path: str) -> Any:
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote(path)


def _missing(looks: dict[str, Any]) -> list[Any]:
    """The looks that have no answer yet."""
    return list(ray.wait([*looks.values()], num_returns=len(looks), timeout=0)[1])


def _answer(look: Any) -> bool:
    try:
        return bool(ray.get(look))
    except RayError:  # the node has gone meanwhile
        return False


def _write(path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).touch()


def _sees(path: str) -> bool:
    return Path(path).exists()


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)
