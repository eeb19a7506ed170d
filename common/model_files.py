"""Where a model's files are: the embedded demo model, a folder, or a Hugging Face hub id."""

import os
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
_SERVED = "a model is a folder with config.json, tokenizer.json and *.safetensors, or a hub id (owner/name)"
_FILE_ENDINGS = (".gguf", ".safetensors", ".json", ".bin", ".pt", ".pth")
_VARIABLES = "HF_ENDPOINT and others of huggingface_hub, ALL_PROXY, HTTPS_PROXY and HTTP_PROXY"


class HubUnreachable(CheckpointError, TryAgainError):
    """The hub does not answer now."""


def resolve_model(model: str | None, *, weights: bool) -> Path:
    """The folder that holds `model`'s files, downloaded from the hub if need be.

    Args:
        model: None for the embedded demo model, a folder, or a hub id such as `Qwen/Qwen3-0.6B`.
        weights: whether the weights are needed too, or only configuration and tokenizer.

    Raises:
        CheckpointError: there is no such folder and the hub has no such model, or (HubUnreachable) does not answer.
    """
    if model is None:
        return DEMO_MODEL_DIR
    folder = Path(os.path.expanduser(model))
    try:
        if is_folder(folder):
            return folder
        if fault := _why_no_id(model, folder):
            raise CheckpointError(fault)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from error
    patterns = TOKENIZER_PATTERNS + ((WEIGHT_PATTERNS + POOLING_PATTERNS) if weights else ())
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415  (slow to import, rarely needed)

        return Path(snapshot_download(model, allow_patterns=list(patterns)))
    except OSError as error:  # what the hub's library raises on purpose, but for an id that the hub could not have
        from huggingface_hub.errors import OfflineModeIsEnabled  # noqa: PLC0415

        answer = getattr(error, "response", None)
        is_settled = answer is not None and answer.status_code in (401, 403, 404)
        is_settled = is_settled or isinstance(error.__cause__, OfflineModeIsEnabled)
        kind = CheckpointError if is_settled else HubUnreachable
        raise kind(f"{model} is no folder here and could not be fetched from the hub: {_reason(error)}") from error
    except Exception as error:  # of a variable, such as a proxy, that it or a library of its cannot use
        hint = "" if type(error).__name__ == "HFValidationError" else f" ({type(error).__name__}); see {_VARIABLES}"
        raise CheckpointError(
            f"{model} is no folder here and cannot be fetched from the hub: {_reason(error)}{hint}"
        ) from error


def _why_no_id(model: str, path: Path) -> str | None:
    """Say so if a text cannot mean a model of the hub: it is a path that is there, or looks like one."""
    if is_there(path):
        if _is_gguf(path):
            return f"{model} is a GGUF file, which is not served: {_SERVED}"
        return f"{model} is no folder: {_SERVED}"
    if path.is_absolute() or model.startswith((".", "~")) or model.endswith("/") or model.count("/") != 1:
        return f"there is no folder {model}, and it is not a hub id (owner/name, such as Qwen/Qwen3-0.6B)"
    if model.endswith(_FILE_ENDINGS):
        return f"there is no {model}, and a hub id (owner/name) does not end like a file; {_SERVED}"
    if is_there(path.parent):
        return f"there is no folder {model}, and a hub id (owner/name) is asked for only where no {path.parent} is here"
    return None


def _is_gguf(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _reason(error: Exception) -> str:
    """The first line of what an error says."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def model_name(model: str | None) -> str:
    """The name clients see: `baton-demo`, a hub id as it is, a folder's last part."""
    if model is None:
        return "baton-demo"
    folder = Path(os.path.expanduser(model))
    return Path(os.path.realpath(folder)).name if os.path.isdir(folder) else model
