"""A picture of what `bench_failover.py` printed: for each setting, the gap that streams saw, and what was recomputed.

Example: python benchmarks service.failover_picture figures.jsonl > docs/failover.svg
"""

import json
import math
from html import escape
from typing import Any, TextIO

import click

from benchmarks.service.disturbed_fleet import Setting

WORDS = {
    Setting.SIBLING: "two executors, SIGKILL of one",
    Setting.ALONE: "one executor, SIGKILL",
    Setting.KEEPER: "one and a keeper, SIGKILL",
    Setting.KEEPER_AND_SIBLING: "two and a keeper, SIGKILL of one",
    Setting.STANDBY: "one, a keeper, a standby: SIGKILL",
    Setting.ROLLOUT: "one, a keeper, a standby: rollout",
}
TICKS_MS = {
    30: "30 ms",
    100: "100 ms",
    300: "300 ms",
    1000: "1 s",
    3000: "3 s",
    10_000: "10 s",
    30_000: "30 s",
    100_000: "100 s",
}
LEFT, RIGHT, WIDTH = 240, 690, 860  # of the axis, and of the picture
ROW = 24
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f } .head { font-weight: 600 } .dim { fill: #6e7781 }
  line { stroke: #d0d7de } .range { stroke: #0969da; stroke-width: 6; stroke-linecap: round } circle { fill: #0a3069 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .dim { fill: #8d96a0 } line { stroke: #30363d } .range { stroke: #4493f8 }
    circle { fill: #cae8ff }
  }
"""


@click.command()
@click.argument("figures", type=click.File())
def main(figures: TextIO) -> None:
    """Draw what FIGURES has, JSON lines of bench_failover.py, as SVG."""
    click.echo(picture([json.loads(line) for line in figures if line.startswith("{")]))


def picture(figures: list[dict[str, Any]]) -> str:
    """The picture; a line of figures for each row, by model and dtype in the order of their first lines."""
    most = max(line["gap_ms_p99"] for line in figures) * 1.1
    parts: list[str] = []
    y = 20
    for model, dtype in dict.fromkeys((line["model"], line["dtype"]) for line in figures):
        lines = [line for line in figures if (line["model"], line["dtype"]) == (model, dtype)]
        about = lines[0]
        head = f"{model}, dtype {dtype}, {about['streams']} streams, prompts of {about['prompt_tokens']:,} tokens"
        parts.append(_text(10, y, head, "head"))
        parts.append(_text(RIGHT + 30, y, "again, for each fault", "dim"))
        bottom = y + 14 + ROW * len(lines)
        for ms, words in TICKS_MS.items():
            if ms < most:
                x = _x(ms, most)
                parts.append(f'<line x1="{x:.1f}" y1="{y + 10}" x2="{x:.1f}" y2="{bottom}"/>')
                parts.append(_text(x, bottom + 14, words, "dim", anchor="middle"))
        for line in lines:
            y += ROW
            at = y + 4
            parts.append(_text(10, y + 8, WORDS[Setting(line["setting"])]))
            first, last = _x(line["gap_ms_p50"], most), _x(line["gap_ms_p99"], most)
            parts.append(f'<line class="range" x1="{first:.1f}" y1="{at}" x2="{last:.1f}" y2="{at}"/>')
            parts.append(f'<circle cx="{first:.1f}" cy="{at}" r="5"/>')
            parts.append(_text(RIGHT + 30, y + 8, f"{round(line['recomputed_tokens'] / line['faults']):,} tokens"))
        y = bottom + 50
    said = "from a stream's last token before the fault to its first one after, p50 (dot) to p99; tokens computed again"
    parts.append(_text(10, y - 10, said, "dim"))
    size = f'viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{STYLE}</style>\n{body}\n</svg>'


def _x(ms: float, most: float) -> float:
    """Where a time is on the axis, which is logarithmic and ends with `most`."""
    first = min(TICKS_MS)
    return LEFT + (RIGHT - LEFT) * math.log(max(ms, first) / first) / math.log(most / first)


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


if __name__ == "__main__":
    main()
