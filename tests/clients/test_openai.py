"""The published `openai` client against real services: every feature, and a kill in the middle of a call."""

import pytest

from tests.clients.matrix import FEATURES, OPENAI_HERE, Told, run_script


@pytest.fixture(scope="module")
def told(fleet) -> dict[str, Told]:
    return run_script(fleet, OPENAI_HERE, {})


@pytest.mark.parametrize("feature", FEATURES)
def test_openai(told, feature):
    assert told[feature].ok, told[feature].why
