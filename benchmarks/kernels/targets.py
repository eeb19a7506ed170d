"""The targets of the GPU kernels on an H200, and which of them a run meets."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from executor_svc.devices.gpu import FEW_ROWS

Figures = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """What some cases should reach.

    Attributes:
        name: in words.
        applies: whether a case with these figures has this target.
        value: the figure that counts; KeyError where the case has none.
        limit: the least that `value` should be, or the most if `at_most`.
    """

    name: str
    applies: Callable[[Figures], bool]
    value: Callable[[Figures], float]
    limit: float
    at_most: bool = False

    def met(self, value: float) -> bool:
        """Whether the value reaches the target."""
        return value <= self.limit if self.at_most else value >= self.limit


STREAMING = ("rms_norm", "add_rms_norm", "qk_norm_rope_store", "silu_and_mul")
DECODES = ((256, 1024), (32, 8192))


def _is_decode(figures: Figures) -> bool:
    return figures.get("phase") == "decode" and (figures["rows"], figures["context"]) in DECODES


TARGETS = (
    Target(
        "share of the copy's bandwidth",
        lambda figures: figures["kernel"] in STREAMING and figures["tokens"] >= 256,
        lambda figures: figures["of_copy"],
        0.80,
    ),
    Target("share of the copy's bandwidth", _is_decode, lambda figures: figures["of_copy"], 0.85),
    Target(
        "times as fast as flash-attn",
        lambda figures: _is_decode(figures) and "us_flash_attn" in figures,
        lambda figures: figures["us_flash_attn"] / figures["us_ours"],
        1.0,
    ),
    Target(
        "of the time of flash-attn",
        lambda figures: figures.get("phase") == "prefill" and "us_flash_attn" in figures,
        lambda figures: figures["us_ours"] / figures["us_flash_attn"],
        1.3,
        at_most=True,
    ),
    Target(
        "of the time of cuBLAS and SiLU",
        lambda figures: figures["kernel"] == "linear_silu_and_mul" and figures["tokens"] <= FEW_ROWS,
        lambda figures: figures["us_ours"] / figures["us_cublas"],
        1.0,
        at_most=True,
    ),
    Target(
        "us for 256 rows",
        lambda figures: figures["kernel"] == "sample" and figures["rows"] == 256,
        lambda figures: figures["us_ours"],
        60.0,
        at_most=True,
    ),
)


def summarize(measured: Iterable[Figures]) -> str:
    """A line for each case and target, and how many are met."""
    lines = []
    num_met = 0
    for figures in measured:
        for target in TARGETS:
            if "us_ours" not in figures or not target.applies(figures):
                continue
            value = target.value(figures)
            met = target.met(value)
            num_met += met
            sign = "<=" if target.at_most else ">="
            lines.append(
                f"{'met ' if met else 'MISS'} {value:8.2f} {sign} {target.limit} {target.name}: {_case(figures)}"
            )
    return "\n".join([*lines, f"{num_met} of {len(lines)} targets met"])


def _case(figures: Figures) -> str:
    sizes = ("phase", "tokens", "rows", "context", "block_size", "layout", "kind")
    return ", ".join(
        [figures["model"], figures["kernel"], *(f"{size} {figures[size]}" for size in sizes if size in figures)]
    )
