"""The published `openai` client against real services: every feature, and a kill in the middle of a call."""

import sys

import pytest

from tests.clients.matrix import FEATURES, SCRIPTS, Told, run_script


@pytest.fixture(scope="module")
def told(fleet) -> dict[str, Told]:
    return run_script(fleet, [sys.executable, str(SCRIPTS / "openai_python.py")])


@pytest.mark.parametrize("feature", FEATURES)
def test_openai(told, feature):
    assert told[feature].ok, told[feature].why
