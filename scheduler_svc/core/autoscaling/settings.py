"""What an operator says about the size of the fleet. Pure."""

from dataclasses import dataclass

from common.errors import BatonError

DEFAULT_TARGET_TTFT_S = 2.0


class WrongScale(BatonError):
    """The options about the size of the fleet contradict each other."""


@dataclass(frozen=True, slots=True)
class ScaleSettings:
    """Between which sizes the fleet moves, and for what.

    Attributes:
        min_executors, max_executors: both are included.
        target_ttft_s: a request should get its first token within so many seconds.
    """

    min_executors: int
    max_executors: int
    target_ttft_s: float = DEFAULT_TARGET_TTFT_S


def scale_settings(
    min_executors: int | None, max_executors: int | None, target_ttft_s: float | None
) -> ScaleSettings | None:
    """Return the settings that three options give; None if the fleet's size is not decided here.

    Raises:
        WrongScale: they contradict each other.
    """
    if max_executors is None:
        for option, value in (("--min-executors", min_executors), ("--target-ttft", target_ttft_s)):
            if value is not None:
                raise WrongScale(f"{option} {value} needs --max-executors: without it no size is decided")
        return None
    least = min(1, max_executors) if min_executors is None else min_executors
    if least > max_executors:
        raise WrongScale(f"--min-executors {least} is more than --max-executors {max_executors}")
    return ScaleSettings(least, max_executors, DEFAULT_TARGET_TTFT_S if target_ttft_s is None else target_ttft_s)
