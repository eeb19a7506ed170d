"""The model that an executor is asked for, as the small files in its folder tell: what is wrong with it is found before
torch is imported, which takes seconds. No torch.
"""

from dataclasses import dataclass
from pathlib import Path

from common.errors import CheckpointError
from common.messages import Task
from common.model_files import model_here, resolve_model
from executor_svc.model.config import DecoderConfig
from executor_svc.model.families import read_config
from executor_svc.model.tasks import choose_tasks
from executor_svc.options import ExecutorOptions


@dataclass(frozen=True)
class FoundModel:
    """A model's folder, or the GGUF file in its place; how it computes; and the tasks that the executor takes."""

    folder: Path
    config: DecoderConfig
    tasks: tuple[Task, ...]


def find_model_here(options: ExecutorOptions) -> FoundModel | None:
    """As `find_model`, but None for a model of the hub: before minutes of a download comes the search for a GPU."""
    if options.model is not None and model_here(options.model) is None:
        return None
    return find_model(options)


def find_model(options: ExecutorOptions) -> FoundModel:
    """Find the model of these options, downloaded from the hub if need be, and read its configuration.

    Raises:
        CheckpointError: there is none, or it cannot be served with these options.
    """
    folder = resolve_model(options.model, weights=True)
    found = FoundModel(folder, read_config(folder), choose_tasks(folder, options.tasks))
    _check_positions(folder, found.config, options.max_model_len)
    return found


def _check_positions(folder: Path, config: DecoderConfig, max_model_len: int | None) -> None:
    """Raise CheckpointError if sequences may become longer than the model is computed exactly for."""
    wanted = max_model_len or config.max_positions
    if config.exact_because and wanted > config.exact_positions:
        raise CheckpointError(
            f"{folder} takes {config.max_positions} positions, of which the first {config.exact_positions} can be "
            f"served ({config.exact_because}): give --max-model-len {config.exact_positions} or less, not {wanted}"
        )
