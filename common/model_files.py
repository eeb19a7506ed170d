"""Where a model's files are: the embedded demo model, a folder, a GGUF file, or what a Hugging Face hub has."""

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import CheckpointError, TryAgainError
from common.paths import is_folder, is_there

DEMO_MODEL_DIR = Path(__file__).parent / "demo_model"
TOKENIZER_PATTERNS = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "chat_template*",
    "vocab.json",
    "merges.txt",
)
WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json")
POOLING_PATTERNS = (
    "modules.json",
    "*Pooling/config.json",
)  # of sentence-transformers, for an executor to choose its task
MAGIC = b"GGUF"  # that a GGUF file begins with
MAX_SHARDS = 2**10
_SHARD_NAME = re.compile(r"(?P<model>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_SERVED = (
    "a model is a folder with config.json, tokenizer.json and *.safetensors, or a GGUF file; of a hub owner/name, or "
    "owner/name:FILE.gguf"
)
_FILE_ENDINGS = (".gguf", ".safetensors", ".json", ".bin", ".pt", ".pth")
_VARIABLES = "HF_ENDPOINT and others of huggingface_hub, ALL_PROXY, HTTPS_PROXY and HTTP_PROXY"


class HubUnreachable(CheckpointError, TryAgainError):
    """The hub does not answer now."""


@dataclass(frozen=True)
class ShardName:
    """The name of a file of several: `{model}-{number:05}-of-{count:05}.gguf`, counted from 1."""

    model: str
    number: int
    count: int

    @staticmethod
    def of(path: Path) -> "ShardName | None":
        """Take a path's name apart; None if it is not such a name."""
        found = _SHARD_NAME.fullmatch(path.name)
        return found and ShardName(found["model"], int(found["number"]), int(found["count"]))

    def sibling(self, number: int) -> str:
        """Name another shard of the same model."""
        return f"{self.model}-{number:05}-of-{self.count:05}.gguf"


def resolve_model(model: str | None, *, weights: bool) -> Path:
    """The folder that holds `model`'s files, or the GGUF file that does, downloaded from the hub if need be.

    Args:
        model: None for the embedded demo model, a folder, a GGUF file (of several, the first), a hub id such as
            `Qwen/Qwen3-0.6B`, or a GGUF file of a hub, such as `Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf`.
        weights: whether the weights are needed too, or only configuration and tokenizer.

    Raises:
        CheckpointError: there is no such folder or file and the hub has no such model, or (HubUnreachable) does not
            answer.
    """
    if model is None:
        return DEMO_MODEL_DIR
    if (here := model_here(model)) is not None:
        return here
    repo, file = _hub_parts(model)
    if file is None:
        return _fetch(model, TOKENIZER_PATTERNS + ((WEIGHT_PATTERNS + POOLING_PATTERNS) if weights else ()))
    check_first_shard(Path(file))
    names = [file, *_other_shards(file)] if weights else [file]
    folder = _fetch(repo, [glob.escape(name) for name in names])
    if missing := [name for name in names if not (folder / name).exists()]:
        raise CheckpointError(f"{model} cannot be served: no {missing[0]} came from the hub's {repo}")
    return folder / file


def model_here(model: str) -> Path | None:
    """The folder or GGUF file on this machine that `model` names; None for a model of the hub.

    Raises:
        CheckpointError: it is neither here, nor an id that the hub could have.
    """
    try:
        model.encode()  # helpers' settings, logs and answers hold it
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{model} is not UTF-8: give it another name, or a link with one") from error
    path = Path(os.path.expanduser(model))
    try:
        if is_folder(path):
            _check_folder(path)
            return path
        if _is_gguf(path):
            check_first_shard(path)
            return path
        if fault := _why_no_id(model, path, *_hub_parts(model)):
            raise CheckpointError(fault)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    return None


def _fetch(repo: str, patterns: Sequence[str]) -> Path:
    """Download what the hub has of a repository, and return its folder."""
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415  (slow to import, rarely needed)

        return Path(snapshot_download(repo, allow_patterns=[*patterns]))
    except OSError as error:  # what the hub's library raises on purpose, but for an id that the hub could not have
        from huggingface_hub.errors import OfflineModeIsEnabled  # noqa: PLC0415

        answer = getattr(error, "response", None)
        is_settled = answer is not None and answer.status_code in (401, 403, 404)
        is_settled = is_settled or isinstance(error.__cause__, OfflineModeIsEnabled)
        kind = CheckpointError if is_settled else HubUnreachable
        raise kind(f"{repo} is no folder here and could not be fetched from the hub: {_reason(error)}") from error
    except Exception as error:  # of a variable, such as a proxy, that it or a library of its cannot use
        hint = "" if type(error).__name__ == "HFValidationError" else f" ({type(error).__name__}); see {_VARIABLES}"
        raise CheckpointError(
            f"{repo} is no folder here and cannot be fetched from the hub: {_reason(error)}{hint}"
        ) from error


def _hub_parts(model: str) -> tuple[str, str | None]:
    """Take `owner/name:FILE.gguf` apart; the file is None where only a repository is named."""
    repo, colon, file = model.partition(":")
    return (repo, file) if colon and file.endswith(".gguf") else (model, None)


def _why_no_id(model: str, path: Path, repo: str, file: str | None) -> str | None:
    """Say so if a text cannot mean a model of the hub: it is a path that is there, or looks like one."""
    if is_there(path):
        if model.endswith(".gguf") and path.is_file():
            return f"{model} is called a GGUF file, and is none: {_SERVED}"
        return f"{model} is no folder and no GGUF file: {_SERVED}"
    here = Path(repo)
    is_path = here.is_absolute() or repo.startswith((".", "~")) or repo.endswith("/") or repo.count("/") != 1
    if is_path or (file is not None and not {"", ".", ".."}.isdisjoint(file.split("/"))):
        why = "it is not a hub id (owner/name, such as Qwen/Qwen3-0.6B)"
    elif repo.endswith(_FILE_ENDINGS):
        why = f"a hub id (owner/name) does not end like a file; {_SERVED}"
    elif file is not None and is_there(here):
        why = f"{repo} is here: give {repo}/{file}, or another file that is there"
    elif is_there(here.parent):
        why = f"a hub id (owner/name) is asked for only where no {here.parent} is here"
    else:
        return None
    return f"there is no {'file' if model.endswith(_FILE_ENDINGS) else 'folder'} {model}, and {why}"


def _check_folder(folder: Path) -> None:
    """Raise CheckpointError for a folder that has GGUF files and no model in the usual files."""
    if not is_there(folder / "config.json"):
        shards = ((path, ShardName.of(path)) for path in sorted(folder.glob("*.gguf")))
        if files := [path for path, shard in shards if shard is None or shard.number == 1]:
            which = f"one of its {len(files)} GGUF files, such as" if len(files) > 1 else "the GGUF file in it,"
            raise CheckpointError(f"{folder} has no config.json: give {which} {files[0]}")


def check_first_shard(path: Path) -> None:
    """Raise CheckpointError for the name of a shard that is not the first, which stands for all of them."""
    shard = ShardName.of(path)
    if shard is not None and shard.number != 1:
        first = path.with_name(shard.sibling(1))
        raise CheckpointError(f"{path} is shard {shard.number} of {shard.count} of a model: give the first, {first}")


def _other_shards(file: str) -> list[str]:
    """The names of a model's files after the first."""
    shard = ShardName.of(Path(file))
    numbers = range(2, min(shard.count, MAX_SHARDS) + 1) if shard else ()
    return [str(Path(file).with_name(shard.sibling(number))) for number in numbers if shard]


def _is_gguf(path: Path) -> bool:
    if not is_there(path) or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _reason(error: Exception) -> str:
    """The first line of what an error says."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def model_name(model: str | None) -> str:
    """The name clients see: `baton-demo`, a hub id as it is, a folder's last part; of a GGUF file what stands before
    `.gguf`, or before the numbers of a first shard."""
    if model is None:
        return "baton-demo"
    path = Path(os.path.expanduser(model))
    if os.path.isdir(path):
        return Path(os.path.realpath(path)).name
    if not model.endswith(".gguf") and not os.path.isfile(path):
        return model
    file = Path(_hub_parts(model)[1] or model)
    shard = ShardName.of(file)
    return shard.model if shard else file.name.removesuffix(".gguf")
