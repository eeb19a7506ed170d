"""Checks of a family run for each of its shapes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    shapes = getattr(metafunc.cls, "SHAPES", {})
    kept = {"shape": shapes, "kernels_shape": {name: shapes[name] for name in shapes if name not in metafunc.cls.PLAIN}}
    for fixture, of_names in kept.items():
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, of_names.values(), ids=of_names)


@pytest.fixture
def edited_config(tmp_path: Path) -> Callable[..., Path]:
    """A folder whose config.json is another one's, without `sliding_window`, and with what is given."""

    def make(folder: Path, *changes: dict[str, Any]) -> Path:
        content = json.loads((folder / "config.json").read_bytes())
        content.pop("sliding_window", None)
        for change in changes:
            content |= change
        (tmp_path / "config.json").write_text(json.dumps(content))
        return tmp_path

    return make
