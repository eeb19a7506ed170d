"""Which model answers a task that gives pooled results, and whether the fleet has it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common import messages as m
from common.errors import CheckpointError, RequestRejected, TaskMissing
from common.model_files import model_name, resolve_model
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.score_prompt import ScorePrompts
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend_options import FrontendOptions


@dataclass(frozen=True)
class PoolingModel:
    """A model that embeds or scores.

    Attributes:
        names: that clients may ask for; the first one is in the answers to all.
        score_prompts: how it is shown a query with a document.
    """

    names: tuple[str, ...]
    tokenizer: Tokenizer
    score_prompts: ScorePrompts = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "score_prompts", ScorePrompts(self.tokenizer))


def read_pooling_models(options: FrontendOptions) -> dict[m.Task, PoolingModel]:
    """The models of their own that tasks have. Tasks with the same model share its tokenizer.

    Raises:
        CheckpointError: the files of one cannot be used, it cannot do its task, or it has a name of the served model.
    """
    models: dict[m.Task, PoolingModel] = {}
    tokenizers: dict[str, Tokenizer] = {}
    for option in options.pooling_models:
        name = option.name or model_name(option.model)
        if name in options.served_model_name:
            raise CheckpointError(f"{name!r} is a name of the served model: call the {option.task} model otherwise")
        if option.model not in tokenizers:
            tokenizers[option.model] = Tokenizer(resolve_model(option.model, weights=False))
        models[option.task] = PoolingModel((name,), tokenizers[option.model])
    if (scorer := models.get("score")) is not None and (fault := scorer.score_prompts.fault):
        raise CheckpointError(f"{scorer.names[0]!r} cannot score: {fault}")
    return models


def task_state(link: CoreLink, task: m.Task) -> m.TaskState:
    """The executors of a task. Raises RequestRejected if none takes it, or the core, which knows, cannot be reached."""
    if not link.is_up:
        raise RequestRejected("the scheduler cannot be reached at the moment", "unavailable")
    state = next((state for state in link.fleet.tasks if state.task == task), None)
    if state is None or not state.max_model_len:
        has_core_looked = bool(link.fleet.tasks)  # it names each task that may come
        raise TaskMissing(task, may_come=state is not None or not has_core_looked)
    return state


def tasks_of_served(fleet: m.FleetState, pooling: Mapping[m.Task, PoolingModel]) -> list[m.Task]:
    """The tasks that the served model answers: those that executors have taken, without those of other models."""
    taken = [state.task for state in fleet.tasks if state.max_model_len and state.task not in pooling]
    return taken or ["generate"]


def num_ready_of_served(fleet: m.FleetState, pooling: Mapping[m.Task, PoolingModel]) -> int:
    """Executors of the served model that take plans now: those that generate, or if none ever did those that embed or
    score."""
    tasks = tasks_of_served(fleet, pooling)
    if "generate" in tasks:
        return fleet.num_ready
    return max(state.num_ready for state in fleet.tasks if state.task in tasks)
