"""The model that a benchmark of a whole service was told to serve."""

from pathlib import Path


def model_folder(model: str | None, scratch: Path) -> str | None:
    """Its folder: of a checkpoint, or of one that is made in `scratch` if the model is a shape, with random weights.

    Args:
        model: a folder, a shape such as `0.6B`, or None for the embedded demo model.
    """
    if model is None or Path(model).is_dir():
        return model
    from benchmarks.rig.text_checkpoint import write_text_checkpoint  # noqa: PLC0415  (torch)

    return str(write_text_checkpoint(scratch / model, model))
