"""Where a model's files are: the embedded demo model, a folder, or a Hugging Face hub id."""

from pathlib import Path

from common.errors import CheckpointError

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


def resolve_model(model: str | None, *, weights: bool) -> Path:
    """The folder that holds `model`'s files, downloaded from the hub if need be.

    Args:
        model: None for the embedded demo model, a folder, or a hub id such as `Qwen/Qwen3-0.6B`.
        weights: whether the weights are needed too, or only configuration and tokenizer.

    Raises:
        CheckpointError: there is no such folder and the hub has no such model, or cannot be reached.
    """
    if model is None:
        return DEMO_MODEL_DIR
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise CheckpointError(f"there is no folder {model}, and it is not a hub id (owner/name)")
    from huggingface_hub import snapshot_download  # noqa: PLC0415  (slow to import, rarely needed)
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    patterns = TOKENIZER_PATTERNS + ((WEIGHT_PATTERNS + POOLING_PATTERNS) if weights else ())
    try:
        return Path(snapshot_download(model, allow_patterns=list(patterns)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"{model} is no folder here and could not be fetched from the hub: {reason}") from error


def model_name(model: str | None) -> str:
    """The name clients see: `baton-demo`, a hub id as it is, a folder's last part."""
    if model is None:
        return "baton-demo"
    folder = Path(model).expanduser()
    return folder.resolve().name if folder.is_dir() else model
