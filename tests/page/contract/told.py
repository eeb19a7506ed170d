"""Writes down what the service tells pages: `python -m tests.page.contract.told`, after a change that was meant.

`test_contract.py` compares the files with what the service tells now; `tests/page/contract.test.js` reads them as the
page does.
"""

import asyncio
import json
from pathlib import Path
from typing import Any, get_args

import msgspec

from common import messages as m
from common.clocks import Clocks
from scheduler_svc.core.fleet.fleet import FAILURES
from scheduler_svc.core.observability.prometheus_text import CAUSES
from scheduler_svc.frontend.http.page_api import RequestLife
from scheduler_svc.frontend.live.hub import LiveHub
from scheduler_svc.frontend.live.page_events import Reader
from tests.support.link import Link
from tests.support.status_reports import executor_status, status_report
from tests.support.views import EPOCH, blocks, change, event, fresh, running, waiting

FOLDER = Path(__file__).parent
EVENTS = FOLDER / "events.txt"
LIFE = FOLDER / "life.json"
WORDS = FOLDER / "words.json"
WALL_S = 1_795_000_000.0

REPORT = status_report(
    waiting=1,
    running=1,
    waits_for="memory",
    first_token=m.Percentiles(count=9, p50=0.05, p90=0.1, p99=0.25),
    between_tokens=m.Percentiles(count=90, p50=0.004, p90=0.005, p99=0.006),
    executors=[
        executor_status(epoch=EPOCH, num_blocks=8, free_blocks=6, running=1, max_num_seqs=4, tasks=["generate"])
    ],
    keys_unreadable={"clients": "/keys/api-keys.json cannot be read: Permission denied"},
    pauses_s={EPOCH - 1: 0.25},
    scale=m.ScaleStatus(wanted=2, forecast_ttft_s=1.5, reason="memory", drain_first=["gpu-a"]),
)
VIEWS = (
    fresh(
        report=REPORT,
        waiting=(waiting("w-0", tokens=120, output=5, priority=-1, reason="memory"),),
        running=(running("r-0"),),
        events=(event(0), event(1, kind="lost", cause="hung", reason="step 3 is late", sequences=2)),
        history=(m.HistorySample(98.0, 1.0, 2.0, -1.0, 3, 4), m.HistorySample(99.0, 5.0, 6.0, 0.5, 7, 8)),
        blocks=(blocks({1: 2}, {3: 1}),),
    ),
    change(
        1,
        waiting=(),
        running=(running("w-0", since=101.0),),
        events=(event(2, at=101.0, kind="joined", blocks_cached=12),),
        history=(m.HistorySample(101.0, 9.0, 0.0, 0.25, 1, 0),),
        blocks=(blocks({1: 3, 2: 2}, {4: 1}),),
    ),
)
MARKS = (
    m.Mark(at=10.0, what="queued", tokens=120),
    m.Mark(at=11.0, what="admitted", executor="one", epoch=7, tokens=120, cached=64),
    m.Mark(at=11.0, what="prefill", executor="one", epoch=7, tokens=56),
    m.Mark(at=12.0, what="first_token", executor="one", epoch=7),
    m.Mark(at=15.0, what="lost", executor="one", epoch=7, cause="disconnected"),
    m.Mark(at=16.0, what="admitted", executor="two", epoch=8, tokens=160, cached=159),
    m.Mark(at=16.0, what="prefill", executor="two", epoch=8, tokens=1),
    m.Mark(at=16.5, what="resumed", executor="two", epoch=8),
    m.Mark(at=20.0, what="ended", tokens=87, cause="stop"),
)


def events() -> str:
    """All that one page is told of VIEWS, as it is sent."""
    return asyncio.run(_told())


async def _told() -> str:
    link = Link()
    hub = LiveHub(link, clocks=lambda: Clocks(WALL_S, 0.0, 5.0))
    told = b""
    with hub.page(Reader("", sees_all=True)) as page:
        await asyncio.sleep(0)  # it asks
        for view in VIEWS:
            link.on_view(view)
            told += await page.next()
        link.is_up = False
        told += await page.next()
    return told.decode()


def life() -> Any:
    """The answer of /page/requests/ID for MARKS."""
    lives = [m.SequenceLife(index=0, marks=list(MARKS), num_left_out=0, output=87)]
    return json.loads(msgspec.json.encode(RequestLife("r", 21.0, lives)))


def words() -> dict[str, list[str]]:
    """Every word that the page has to have a phrase for."""
    return {
        "wait_reasons": list(get_args(m.WaitReason)),
        "event_kinds": list(get_args(m.EventKind)),
        "mark_kinds": list(get_args(m.MarkKind)),
        "causes": [cause for cause in CAUSES if cause not in FAILURES] + list(FAILURES),
        "states": ["ready", "finishing", "draining"],
        "block_states": list(m.BLOCK_STATES),
    }


if __name__ == "__main__":
    EVENTS.write_text(events())
    LIFE.write_text(json.dumps(life(), indent=1) + "\n")
    WORDS.write_text(json.dumps(words(), indent=1) + "\n")
