"""The picture of bench_failover.py's figures."""

import re
import xml.etree.ElementTree as ElementTree

from benchmarks.service.disturbed_fleet import Setting
from benchmarks.service.failover_picture import LEFT, RIGHT, WORDS, picture

SVG = "{http://www.w3.org/2000/svg}"


def line(setting: Setting, p50: float, p99: float, recomputed: int, model: str = "demo <1>") -> dict[str, object]:
    about = {"model": model, "dtype": "bfloat16", "streams": 16, "prompt_tokens": 1000, "faults": 5}
    return {"setting": setting.value, **about, "gap_ms_p50": p50, "gap_ms_p99": p99, "recomputed_tokens": recomputed}


def test_every_setting_has_words() -> None:
    assert WORDS.keys() == set(Setting)


def test_rows_say_what_was_measured() -> None:
    figures = [line(Setting.ALONE, 3000, 60_000, 87_917), line(Setting.STANDBY, 20, 100, 0, model="0.6B")]
    root = ElementTree.fromstring(picture(figures))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert [text for text in texts if re.fullmatch(r"[\d,]+ tokens", text)] == ["17,583 tokens", "0 tokens"]
    assert [text.partition(",")[0] for text in texts if "streams" in text] == ["demo <1>", "0.6B"]
    (alone, standby) = [r for r in root.iter(f"{SVG}line") if r.get("class") == "range"]
    assert LEFT == float(standby.get("x1")) < float(standby.get("x2")) < float(alone.get("x1"))
    assert float(alone.get("x1")) < float(alone.get("x2")) < RIGHT
