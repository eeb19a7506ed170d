"""Checks of a family run for each of its shapes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "shape" in metafunc.fixturenames:
        metafunc.parametrize("shape", metafunc.cls.SHAPES.values(), ids=metafunc.cls.SHAPES)


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
