"""The published `openai` client on Responses, against real services: schemas, items, a kill in the middle of a call."""

import sys

import pytest

from tests.clients.matrix import HERE, run_script


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "features"),
    [
        ("openai_responses_python.py", ("schema", "thinking", "killed")),
        ("openai_kept_python.py", ("goes_on", "own_items", "references", "resumed")),
    ],
)
def test_openai_on_responses(fleet, script, features):
    told = run_script(fleet, [sys.executable, str(HERE / "scripts" / script)], {}, features)
    assert {feature: told[feature].why for feature in features if not told[feature].ok} == {}
