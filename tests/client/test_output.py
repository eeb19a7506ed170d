"""Numbers for people."""

import pytest

from scheduler_svc.client.output import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.9, "59.9 s"),
        (61.4, "1:01 min"),
        (3599.6, "1:00:00 h"),
        (7387, "2:03:07 h"),
        (86400, "1 day 0:00:00 h"),
        (200000, "2 days 7:33:20 h"),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text
