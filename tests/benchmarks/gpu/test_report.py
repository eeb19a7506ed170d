"""bench_gpu.py's figures, and what its summary says of them."""

from benchmarks.gpu import report
from benchmarks.rig import roofline
from benchmarks.rig.ceilings import Ceilings
from benchmarks.rig.runs import TimedRun, median_run, rates
from executor_svc.model.families import read_config
from tests.benchmarks.steps import make_step


def test_comparisons():
    service = [TimedRun(0.0, seconds, 100) for seconds in (1.0, 2.0, 4.0)]  # 100, 50, 25 a second
    in_one = [TimedRun(0.0, seconds, 100) for seconds in (1.0, 1.0, 3.0)]
    assert rates(service) == {"tok_s": 50.0, "tok_s_runs": [100.0, 50.0, 25.0]}
    assert median_run(service) is service[1]
    assert median_run(service[:2]) is service[1]
    assert report.price_of_split(service, in_one) == 0.75
    assert report.price_of_split(service, None) is None


def test_the_share_of_the_roofline(tiny):
    model = roofline.WorkModel(read_config(tiny["tiny"]), 2)
    step = make_step([(1, 9)])
    ceilings = Ceilings(copy=model.work(step).num_bytes / 2, matmul=1e15)  # 2 s a step
    figures = report.roofline(TimedRun(5.0, 10.0, 8), [step, step], model, ceilings, 1)
    assert (figures["least_s"], figures["tok_s"], figures["share"]) == (4.0, 2.0, 0.8)
    without = report.roofline(TimedRun(5.0, 10.0, 8), [step, step], model, None, 1)
    assert without["least_s"] is None is without["share"]
    assert {key for key in without if without[key] is not None} == {
        *("steps", "weight_gb", "kv_read_gb", "kv_written_gb", "tflop")
    }


GPU_FIGURES = {
    "model": "0.6B",
    "device": "NVIDIA H200",
    "num_seqs": 256,
    "output_tokens": 133_966,
    "repeats": 3,
    "journal": True,
    "service": {"tok_s": 34_000.0},
    "in_process": {"tok_s": 35_000.0},
    "split_share": 0.97,
    "roofline": {
        "steps": 1032,
        "weight_gb": 1200.0,
        "kv_read_gb": 13000.0,
        "kv_written_gb": 30.0,
        "tflop": 300.0,
        "copy_tb_s": 4.3,
        "matmul_tflop_s": 790.0,
        "least_s": 3.2,
        "tok_s": 42_000.0,
        "share": 0.81,
    },
    "phases": {"decode": {"steps": 0}, "mixed": {"steps": 0}},
    "gpu": {
        "decode": {"steps": 100, "busy_share": 0.971, "kernels_share": 0.9, "us_longest_gap": 12.0},
        "mixed": None,
    },
    "peer": {"tok_s": None, "error": "Traceback\nMemoryError: too much"},
}


def test_targets_stand_beside_the_figures():
    text = report.summarize(GPU_FIGURES)
    assert "34,000 output tok/s through the services (target 23,800: met)" in text
    assert "97.0% of it (target 98%: missed)" in text
    assert "reached 81.0% (target 65%: met)" in text
    assert "busy for 97.1% of 100 decode steps (target 97%: met)" in text
    assert "MemoryError: too much" in text
    assert report.summarize(GPU_FIGURES | {"model": "8B"}).count("target") == 2, "the first two are 0.6B's"
    assert "target 16,900" in report.summarize(GPU_FIGURES | {"device": "NVIDIA H100 80GB HBM3"})
    assert report.summarize(GPU_FIGURES | {"device": "NVIDIA A100"}).count("target") == 3
    empty = {"decode": {"error": "none of the trace's 9 events is a record of the GPU"}, "mixed": None}
    assert "decode steps is empty: none of the trace's 9" in report.summarize(GPU_FIGURES | {"gpu": empty})
    peer = {"tok_s": 8500.0, "transformers": "5.17.0", "attention": "paged"}
    assert "4.00 times as fast" in report.summarize(GPU_FIGURES | {"peer": peer})
