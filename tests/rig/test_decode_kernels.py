"""What a layer of a captured decode step launches: with few rows a step lasts as long as its launches do."""

from itertools import pairwise
from pathlib import Path

from executor_svc.devices.gpu import FEW_ROWS
from tests.executor_svc import harness
from tests.rig.stand_in import StandIn, read_launches

FIRST = "qk_norm_rope_store_kernel"
BEFORE_MLP = [FIRST, "attention_kernel", "cublasGemmEx", "_add_rms_norm_kernel"]
MLP_OF_FEW = ["_gated_linear_kernel", "cublasGemmEx"]
MLP_OF_MANY = ["cublasGemmEx", "_silu_and_mul_kernel", "cublasGemmEx"]
AFTER_MLP = ["_add_rms_norm_kernel", "cublasGemmEx"]  # and the next layer's projection


def test_a_decode_layer_is_eight_kernels_with_few_rows_and_nine_with_more(
    rig: StandIn, small: Path, tmp_path: Path
) -> None:
    with rig.recording(tmp_path / "captured"):
        runner, _ = harness.start(
            small,
            device="cuda",
            dtype="bfloat16",
            poison=False,
            attention="triton",
            num_blocks=64,
            max_model_len=1024,
            max_num_seqs=80,
        )
    captured: dict[int, list[str]] = {}
    for launch in read_launches(tmp_path / "captured"):
        if launch.capture:
            captured.setdefault(launch.capture, []).append(launch.name)
    steps = [names for names in captured.values() if names.count(FIRST) == 2 and "attention_kernel" in names]
    sizes = runner._decode_sizes.tolist()[::-1]  # the largest are captured first
    assert len(steps) == len(sizes)
    assert sizes[0] > FEW_ROWS
    for rows, names in zip(sizes, steps, strict=True):
        ((first, second),) = pairwise(at for at, name in enumerate(names) if name == FIRST)
        mlp = MLP_OF_FEW if rows <= FEW_ROWS else MLP_OF_MANY
        assert names[first:second] == BEFORE_MLP + mlp + AFTER_MLP, f"{rows} rows"
