"""The names by which clients ask for the model."""

from collections.abc import Sequence

from scheduler_svc.frontend.errors import ApiError


def check_model(asked: str, served: Sequence[str]) -> None:
    """Raise the ApiError (404) for a model that is not served here."""
    if asked not in served:
        names = " or ".join(f"'{name}'" for name in served)
        message = f"The model '{asked[:200]}' does not exist here; {names} does."
        raise ApiError(404, message, code="model_not_found", param="model")
