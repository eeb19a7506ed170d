"""The published `openai` client against real services: streams, calls, `parse`, a kill in the middle of a call."""

import pytest

from tests.clients.matrix import OPENAI_HERE, QUICK, run_script


@pytest.mark.slow
def test_openai(fleet):
    """One test, as its features share the services and the script."""
    told = run_script(fleet, OPENAI_HERE, {}, QUICK)
    assert {feature: told[feature].why for feature in QUICK if not told[feature].ok} == {}
