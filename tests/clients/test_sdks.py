"""The published clients `openai` and `anthropic` against real services: streams, calls, schemas, kept responses, and a
kill in the middle of a call."""

import sys

import pytest

from tests.clients.matrix import HERE, QUICK, run_script


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "features"),
    [
        ("openai_python.py", QUICK),
        ("anthropic_python.py", QUICK),
        ("openai_responses_python.py", ("schema", "thinking", "killed")),
        ("openai_kept_python.py", ("goes_on", "own_items", "references", "resumed")),
    ],
)
def test_its_features_work(fleet, script, features):
    """One test for a script, whose features share it and the services."""
    told = run_script(fleet, [sys.executable, str(HERE / "scripts" / script)], {}, features)
    assert {feature: told[feature].why for feature in features if not told[feature].ok} == {}
