"""The published `anthropic` client against real services: calls, results, schemas, thoughts, a kill in a call."""

import pytest

from tests.clients.matrix import ANTHROPIC_HERE, QUICK, run_script


@pytest.mark.slow
def test_anthropic(fleet):
    """One test, as its features share the services and the script."""
    told = run_script(fleet, ANTHROPIC_HERE, {}, QUICK)
    assert {feature: told[feature].why for feature in QUICK if not told[feature].ok} == {}
