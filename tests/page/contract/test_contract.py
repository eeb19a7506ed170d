"""The service tells pages what is written down here, event by event and word by word."""

import base64
import json
import re
import zlib

from tests import ROOT
from tests.page.contract.told import EVENTS, LIFE, WORDS, events, life, words

DOC = (ROOT / "docs" / "page.md").read_text()


def parsed(text: str) -> list[tuple[str, object]]:
    """Names and data of events; maps as bytes, as other versions of zlib pack otherwise."""
    found = []
    for part in text.split("\n\n")[:-1]:
        name, data = re.fullmatch(r"event: (\w+)\ndata: (.*)", part).groups()
        content = json.loads(data)
        if name == "map":
            content["states"] = list(zlib.decompress(base64.b64decode(content["states"])))
        found.append((name, content))
    return found


def test_every_event_is_told_as_it_is_written_down():
    assert parsed(events()) == parsed(EVENTS.read_text())


def test_lives_and_words_are_those_that_are_written_down():
    assert life() == json.loads(LIFE.read_text())
    assert words() == json.loads(WORDS.read_text())


def test_the_page_about_the_page_has_every_event_field_and_word():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", DOC, re.MULTILINE))
    told = parsed(EVENTS.read_text())
    assert {name for name, _ in told} == {*rows} - {"endpoint", "event"}
    for name, data in told:
        first = data[0] if isinstance(data, list) and data else data
        if name != "status" and isinstance(first, dict):
            assert all(f'"{field}"' in rows[name] for field in first), name
    for name in ("wait_reasons", "event_kinds", "mark_kinds"):
        assert all(f"`{word}`" in DOC for word in words()[name])
