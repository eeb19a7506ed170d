"""Which tasks an executor takes, by what is in its model's folder. No torch.

An embedding model has the architecture of one that generates, and nothing of its weights tells. Its folder does: it
says how sentence-transformers pools hidden states (modules.json), or was saved without a head (config.json).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from common.errors import CheckpointError
from common.messages import Task
from common.model_reading import read_model_json

_KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")
_LAST = "lasttoken"


class _Module(msgspec.Struct, frozen=True):
    type: str
    path: str = ""

    @property
    def kind(self) -> str:
        """The last part of its class's name."""
        return self.type.rpartition(".")[2]


class _Architectures(msgspec.Struct, frozen=True):
    architectures: list[str] | None = None


def choose_tasks(folder: Path, asked: Iterable[str] = ()) -> tuple[Task, ...]:
    """The tasks of an executor, in the order of `Task`.

    Args:
        folder: of the model.
        asked: by the operator; if none is, an embedding model takes `embed`, a classifier `score`, and any other
            `generate`. Of a reranker that says "yes" or "no" no folder tells that it is one, so `score` has to be asked
            for.

    Raises:
        CheckpointError: it is to take `embed`, and its folder says that its embeddings are made in another way than of
            the last token's hidden state; or a file is malformed.
    """
    modules = read_model_json(folder / "modules.json", list[_Module]) or []
    has_pooling = any(module.kind == "Pooling" for module in modules)
    architectures = (read_model_json(folder / "config.json", _Architectures) or _Architectures()).architectures or []
    is_embedder = has_pooling or any(name.endswith("Model") for name in architectures)
    is_classifier = any(name.endswith("ForSequenceClassification") for name in architectures)
    chosen = set(asked) or {"embed" if is_embedder else "score" if is_classifier else "generate"}
    if is_classifier and "generate" in chosen:
        raise CheckpointError(f"{folder} has a classifier, which generates nothing: take it with --task score")
    if "embed" in chosen:
        _check_modules(folder, modules)
    return tuple(task for task in cast("tuple[Task, ...]", get_args(Task)) if task in chosen)


def _check_modules(folder: Path, modules: list[_Module]) -> None:
    """Whether an embedding is the normalized hidden state of the last token; frontends normalize."""
    for module in modules:
        if module.kind not in _KNOWN_MODULES:
            raise CheckpointError(f"{folder / 'modules.json'} has a module {module.kind!r}, which is not supported")
        if module.kind != "Pooling":
            continue
        path = folder / module.path / "config.json"
        said = read_model_json(path, dict[str, Any])
        if said is None:
            raise CheckpointError(f"there is no {path}, which modules.json names")
        modes = {name.removeprefix("pooling_mode_") for name, is_on in said.items() if is_on is True} - {
            "include_prompt"
        }
        if isinstance(mode := said.get("pooling_mode"), str):
            modes = {mode}
        if modes != {_LAST}:
            raise CheckpointError(f"{path} pools by {', '.join(sorted(modes)) or 'nothing'} (only {_LAST!r})")
