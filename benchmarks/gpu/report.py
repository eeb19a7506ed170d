"""bench_gpu.py's figures, made of runs and steps, and a summary of them in words."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.rig.ceilings import Ceilings
from benchmarks.rig.roofline import WorkModel, least_time, total_work
from benchmarks.rig.runs import TimedRun
from benchmarks.rig.step_records import RecordedStep

TARGET_MODEL = "0.6B"
TARGETS = {"roofline_share": 0.65, "split_share": 0.98, "busy_share": 0.97}
"""The first is for 0.6B; the highest public figure that we know of for an engine on such a workload is 58%."""
RATE_TARGETS = {"H200": 23_800, "H100": 16_900}
"""For 0.6B, in output tok/s: the share of the roofline, of the floor's rate (floor.py), rounded to hundreds."""

Figures = dict[str, Any]


def price_of_split(service: Sequence[TimedRun], in_one: Sequence[TimedRun] | None) -> float | None:
    """The services' rate as a share of the rate in one process, median over the repeats."""
    if in_one is None:
        return None
    pairs = zip(service, in_one, strict=True)
    return round(median(ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in pairs), 4)


def roofline(
    run: TimedRun, steps: Sequence[RecordedStep], model: WorkModel, ceilings: Ceilings | None, num_devices: int
) -> Figures:
    """What a run moved and computed and, if the ceilings are known, how near the run came to them."""
    works = [model.work(step) for step in steps]
    total = total_work(works)
    figures: Figures = {
        "steps": len(works),
        "weight_gb": round(total.weight_bytes / 1e9, 6),
        "kv_read_gb": round(total.kv_bytes_read / 1e9, 6),
        "kv_written_gb": round(total.kv_bytes_written / 1e9, 6),
        "tflop": round(total.operations / 1e12, 6),
    }
    if ceilings is None:
        return figures | dict.fromkeys(("copy_tb_s", "matmul_tflop_s", "least_s", "tok_s", "share"))
    least_s = least_time(works, ceilings, num_devices)
    return figures | {
        "copy_tb_s": round(ceilings.copy / 1e12, 3),
        "matmul_tflop_s": round(ceilings.matmul / 1e12, 1),
        "least_s": round(least_s, 4),
        "tok_s": round(run.num_tokens / least_s, 1),
        "share": round(least_s / (run.end_s - run.start_s), 4),
    }


def summarize(figures: Figures) -> str:
    """Some lines about a run, with the targets of the figures that have one."""
    return "\n".join(_lines(figures))


def _lines(figures: Figures) -> Iterator[str]:
    service, in_one, peer = figures["service"], figures["in_process"], figures["peer"]
    yield (
        f"Qwen3 {figures['model']} on {figures['device']}, {figures['num_seqs']} requests, "
        f"{figures['output_tokens']:,} output tokens, {figures['repeats']} runs, "
        f"journal {'on' if figures['journal'] else 'off'}"
    )
    yield f"{service['tok_s']:>10,.0f} output tok/s through the services{_target(figures, 'tok_s', service['tok_s'])}"
    if in_one is not None:
        share = figures["split_share"]
        yield (
            f"{in_one['tok_s']:>10,.0f} output tok/s in one process: the services reach "
            f"{share:.1%} of it{_target(figures, 'split_share', share)}"
        )
    if peer is not None and peer["tok_s"] is not None:
        ratio = service["tok_s"] / peer["tok_s"]
        version = f"transformers {peer['transformers']} ({peer['attention']})"
        yield f"{peer['tok_s']:>10,.0f} output tok/s by {version}: the services are {ratio:.2f} times as fast"
    elif peer is not None:
        yield f"transformers failed: {peer['error'].strip().splitlines()[-1:]}"
    yield _roofline_line(figures)
    for kind, phase in figures["phases"].items():
        if phase["steps"]:
            starved = phase["starved_share"]
            yield (
                f"{phase['steps']} {kind} steps of {phase['tokens']:,} tokens took {phase['s']:.2f} s, "
                f"{phase['us_step_p50']:,.0f} us each (p50); on the host: parse {phase['us_parse_p50']:.0f}, "
                f"stage {phase['us_stage_p50']:.0f}, launch {phase['us_launch_p50']:.0f} (staging in it), "
                f"wait {phase['us_wait_p50']:,.0f} us"
                f"{'' if starved is None else f'; nothing was launched ahead for {starved:.1%} of the time'}"
            )
    for kind, window in (figures["gpu"] or {}).items():
        if window is not None and "error" in window:
            yield f"the profile of {kind} steps is empty: {window['error']}"
        elif window is not None:
            target = _target(figures, "busy_share", window["busy_share"]) if kind == "decode" else ""
            yield (
                f"the GPU is busy for {window['busy_share']:.1%} of {window['steps']} {kind} steps{target}; "
                f"kernels run {window['kernels_share']:.1%} of the time, the longest gap is "
                f"{window['us_longest_gap']:,.0f} us"
            )


def _roofline_line(figures: Figures) -> str:
    roofline = figures["roofline"]
    moved = (
        f"{roofline['weight_gb']:,.0f} GB of weights, {roofline['kv_read_gb']:,.0f} GB of KV read and "
        f"{roofline['kv_written_gb']:,.1f} written, {roofline['tflop']:,.0f} TFLOP in {roofline['steps']} steps"
    )
    if roofline["share"] is None:
        return f"roofline: {moved}; no ceilings without a GPU"
    return (
        f"roofline: {moved}; at {roofline['copy_tb_s']:.2f} TB/s and {roofline['matmul_tflop_s']:.0f} TFLOP/s "
        f"{roofline['least_s']:.2f} s, {roofline['tok_s']:,.0f} tok/s; reached {roofline['share']:.1%}"
        f"{_target(figures, 'roofline_share', roofline['share'])}"
    )


def _target(figures: Figures, name: str, value: float) -> str:
    """` (target 23,800: met)`, or nothing for a figure without a target."""
    is_ours = figures["model"] == TARGET_MODEL and figures["num_seqs"] == 256
    if figures["device"] == "cpu" or (name in ("tok_s", "roofline_share") and not is_ours):
        return ""
    rates = (rate for gpu, rate in RATE_TARGETS.items() if gpu in figures["device"])
    target = next(rates, None) if name == "tok_s" else TARGETS[name]
    if target is None:
        return ""
    wanted = f"{target:,}" if target > 1 else f"{target:.0%}"
    return f" (target {wanted}: {'met' if value >= target else 'missed'})"
