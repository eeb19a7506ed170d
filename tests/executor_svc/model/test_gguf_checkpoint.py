"""Weights from GGUF files: those of the same checkpoint in a folder, in whatever type they are stored."""

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from common.errors import CheckpointError
from common.gguf import SUPPORTED_TYPES, read_gguf
from executor_svc.model.checkpoint import SINGLE_FILE, Checkpoint
from executor_svc.model.families import read_config
from executor_svc.model.gguf_blocks import PLAIN_TYPES
from executor_svc.model.gguf_checkpoint import GgufCheckpoint, open_checkpoint
from executor_svc.model.prepared import Weights
from executor_svc.model.rank_group import SINGLE_RANK, RankGroup
from executor_svc.model.source_key import source_key
from executor_svc.model.weights import load_weights
from executor_svc.options import ExecutorOptions
from executor_svc.startup import start_executor
from tests.executor_svc.conftest import Make
from tests.executor_svc.families.checks import drawn_tokens, teacher_forced
from tests.executor_svc.harness import needs_cpp
from tests.executor_svc.ranks import in_threads
from tests.support.checkpoints import reference_logits
from tests.support.effort import examples
from tests.support.gguf_files import convert, random_blocks, write_gguf

SIZES: dict[str, Any] = {"preset": "tiny", "num_layers": 2, "hidden_size": 512, "intermediate_size": 1024}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "head_dim": 64, "attention_bias": True},
    "llama, not tied": {"family": "llama", "head_dim": 64, "num_attention_heads": 8, "tied": False},
    "mistral": {"family": "mistral", "head_dim": 64, "sliding_window": None},
    "qwen2": {"family": "qwen2", "head_dim": 128},
    "qwen3": {"family": "qwen3", "head_dim": 64},
}


def load(path: Path, dtype: torch.dtype = torch.float32, group: RankGroup = SINGLE_RANK) -> tuple[Weights, str]:
    with open_checkpoint(path) as checkpoint:
        return load_weights(checkpoint, read_config(path), dtype, torch.device("cpu"), group)


def with_values(folder: Path, values: dict[str, np.ndarray], target: Path) -> Path:
    """A copy of a checkpoint in a folder with other values."""
    target.mkdir()
    shutil.copy(folder / "config.json", target)
    save_file(values, target / SINGLE_FILE)
    return target


def assert_same(found: Weights, expected: Weights) -> None:
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor), name


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_values_are_the_same_model_as_in_a_folder(checkpoint: Make, tmp_path: Path, family: str):
    """To the fingerprint."""
    folder = checkpoint(**SIZES, **FAMILIES[family])
    convert(folder, path := tmp_path / "m.gguf")
    (found, found_fingerprint), (expected, fingerprint) = load(path), load(folder)
    assert_same(found, expected)
    assert found_fingerprint == fingerprint


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", SUPPORTED_TYPES)
def test_each_type_gives_the_references_values(checkpoint: Make, tmp_path: Path, kind: str, family: str):
    folder = checkpoint(**SIZES, **FAMILIES[family])
    values = convert(folder, path := tmp_path / "m.gguf", kind)
    expected_folder = with_values(folder, values, tmp_path / "expected")
    for dtype in (torch.float32, torch.bfloat16):
        assert_same(load(path, dtype)[0], load(expected_folder, dtype)[0])
    with GgufCheckpoint(path) as opened, Checkpoint(expected_folder) as expected:
        assert opened.is_quantized == (kind not in PLAIN_TYPES)
        assert opened.names == expected.names
        for name in opened.names:
            assert opened.header(name) == (expected.header(name)[0], kind if values[name].ndim > 1 else "F32")
            assert torch.equal(opened.read(name).float(), expected.read(name))


@pytest.mark.parametrize(
    ("family", "kind"), [("llama", "Q5_K"), ("llama", "Q8_0"), ("llama", "F16"), ("qwen2", "Q4_1")]
)
def test_ranks_read_their_parts(checkpoint: Make, tmp_path: Path, family: str, kind: str):
    """Columns too, which begin and end within blocks."""
    folder = checkpoint(**SIZES | FAMILIES[family] | {"intermediate_size": 256})
    values = convert(folder, path := tmp_path / "m.gguf", kind)
    expected_folder = with_values(folder, values, tmp_path / "expected")
    size = 2
    found = in_threads(size, lambda group: load(path, group=group))
    expected = in_threads(size, lambda group: load(expected_folder, group=group))
    for (weights, _), (reference, _) in zip(found, expected, strict=True):
        assert_same(weights, reference)
    assert {fingerprint for _, fingerprint in found} == {load(path)[1]}


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.mark.parametrize("rope", [None, *ROPES])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_configuration_is_that_of_the_folder(checkpoint: Make, tmp_path: Path, family: str, rope: str | None):
    folder = checkpoint(**SIZES, **FAMILIES[family], rope=ROPES.get(rope or ""))
    convert(folder, path := tmp_path / "m.gguf")
    found, expected = read_config(path), msgspec.structs.replace(read_config(folder), dtype="bfloat16")
    if rope == "llama3":
        assert found.rope.rope_type == "divided"
        expected = msgspec.structs.replace(expected, rope=found.rope)
    assert found == expected


def test_what_a_llama_3_computes_is_what_transformers_does(checkpoint: Make, tmp_path: Path):
    folder = checkpoint(**SIZES, **FAMILIES["llama"], rope=ROPES["llama3"])
    convert(folder, path := tmp_path / "m.gguf")
    expected = reference_logits(folder, tokens := drawn_tokens())
    assert (teacher_forced(path, tokens, dtype="float32") - expected).abs().max() < 1e-3 * expected.std()


def test_shards_are_one_model(checkpoint: Make, tmp_path: Path):
    folder = checkpoint(**SIZES, **FAMILIES["llama"])
    convert(folder, tmp_path / "m.gguf", "Q4_0")
    convert(folder, tmp_path / "split.gguf", "Q4_0", split_max_tensors=5)
    first, *others = sorted(tmp_path.glob("split-*.gguf"))
    assert len(others) >= 3
    whole, fingerprint = load(tmp_path / "m.gguf")
    found, found_fingerprint = load(first)
    assert_same(found, whole)
    assert found_fingerprint == fingerprint
    others[1].unlink()
    with pytest.raises(CheckpointError, match=f"there is no {others[1]}"):
        load(first)


def test_rows_in_another_order_are_another_model(checkpoint: Make, tmp_path: Path):
    """Though the same bytes are stored by the same names: nobody can have the weights of one taken for the other's."""
    folder = checkpoint(**SIZES, **FAMILIES["llama"])
    values = convert(folder, path := tmp_path / "m.gguf")
    with GgufCheckpoint(path) as opened:
        tensors = {name: opened.header(name) for name in opened.names}
        model, raw = read_gguf(path), path.read_bytes()
        q = model.tensors["blk.0.attn_q.weight"]
        stored = np.frombuffer(raw[q.offset : q.offset + q.num_bytes], np.float32).reshape(q.shape)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not np.array_equal(stored, values[name])
    other = with_values(folder, values | {name: stored}, tmp_path / "other")
    with Checkpoint(other) as opened:
        assert {name: opened.header(name) for name in opened.names} == tensors
    assert load(other)[1] != load(path)[1]


def rewritten(path: Path, metadata: dict[str, Any] | None = None, **tensors: tuple[np.ndarray, str] | None) -> Path:
    """A file with some tensors more, changed, or left out; `__` in their names is a dot."""
    import gguf

    reader, model = gguf.GGUFReader(path), read_gguf(path)
    held = {tensor.name: (np.array(tensor.data), model.tensors[tensor.name].kind) for tensor in reader.tensors}
    for name, tensor in tensors.items():
        held[name.replace("__", ".")] = tensor
    kept = {name: tensor for name, tensor in held.items() if tensor is not None}
    said = model.metadata | (metadata or {})
    own = ("general.architecture", "GGUF.version")
    return write_gguf(path.with_name("new.gguf"), {key: said[key] for key in said if key not in own}, kept)


@pytest.fixture
def plain(checkpoint: Make, tmp_path: Path) -> Path:
    convert(checkpoint(**SIZES, **FAMILIES["llama"]), path := tmp_path / "m.gguf", "Q8_0")
    return path


def test_whatever_changes_what_is_computed_is_another_model(checkpoint: Make, tmp_path: Path):
    """Also where all tensors stay the same, or have the same values in another type."""
    convert(checkpoint(**SIZES, **FAMILIES["llama"]), path := tmp_path / "m.gguf", "Q8_0")
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    sizes = ("key_length", "value_length")
    halves = {f"llama.attention.{name}": 32 for name in sizes} | {"llama.rope.dimension_count": 32}
    halves |= {"llama.attention.head_count": 8, "llama.attention.head_count_kv": 4}
    table = read_gguf(path).tensors["token_embd.weight"]
    with GgufCheckpoint(path) as opened:
        values = opened.read("model.embed_tokens.weight").numpy()
    stored = np.frombuffer(path.read_bytes()[table.offset :][: table.num_bytes], np.uint8).reshape(len(values), -1)
    others: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"llama.attention.layer_norm_rms_epsilon": 1.0001e-6}, {}),
        ({"llama.rope.freq_base": 10001.0}, {}),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}, {}),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0}, {}),
        (halves, {}),
        ({}, {"rope_freqs__weight": (factors, "F32")}),
        ({}, {"rope_freqs__weight": (factors[::-1].copy(), "F32")}),
        ({}, {"output__weight": (stored, "Q8_0")}),
        ({}, {"output__weight": (values, "F32")}),
        ({}, {"token_embd__weight": (values, "F32")}),
    ]
    fingerprints = [load(rewritten(path, metadata, **tensors))[1] for metadata, tensors in others]
    assert fingerprints[0] == load(path)[1]
    assert len({*fingerprints}) == len(others)


ONE = np.zeros(512, np.float32)


@pytest.mark.parametrize(
    ("tensors", "fault"),
    [
        (
            {"blk__0__ffn_gate_inp__weight": (ONE, "F32")},
            r"no model of its architecture has: blk\.0\.ffn_gate_inp\.weight",
        ),
        ({"blk__01__attn_norm__weight": (ONE, "F32")}, r"architecture has: blk\.01\.attn_norm\.weight"),
        ({"model__norm__weight": (ONE, "F32")}, r"architecture has: model\.norm\.weight"),
        ({"a": (ONE, "F32"), "b": (ONE, "F32")}, r"new\.gguf has tensors that no model of its architecture has: a, b"),
        ({"blk__0__ffn_norm__weight": None}, r"it lacks: model\.layers\.0\.post_attention_layernorm\.weight"),
        ({"blk__0__attn_q__bias": None}, r"no model of this configuration has: model\.layers\.0\.self_attn\.k_proj\.b"),
        (
            {"blk__0__attn_q_norm__weight": (ONE, "F32")},
            r"no model of this .* has: model\.layers\.0\.self_attn\.q_norm",
        ),
        ({"output_norm__weight": (ONE[:500], "F32")}, r"other shapes: model\.norm\.weight is \[500\], not \[512\]"),
        (
            {"output_norm__weight": (random_blocks(np.random.default_rng(0), (512,), "Q8_0"), "Q8_0")},
            r"output_norm\.weight is a vector that is stored as Q8_0, which is not supported",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(plain: Path, tensors: dict[str, Any], fault: str):
    with pytest.raises(CheckpointError, match=fault):
        load(rewritten(plain, **tensors))


def test_a_scale_that_is_no_number_is_refused_by_name(plain: Path):
    bad = random_blocks(np.random.default_rng(0), (1024, 512), "Q8_0")
    bad[700, 34:36] = np.array([np.nan], "<f2").view(np.uint8)
    with pytest.raises(CheckpointError, match=r"new\.gguf: blk\.1\.ffn_up\.weight has a scale that is infinite or no"):
        load(rewritten(plain, blk__1__ffn_up__weight=(bad, "Q8_0")))


def test_a_file_that_becomes_shorter_is_an_error(plain: Path):
    """And not the end of the process, as of one that has it mapped."""
    path = plain.with_name("shorter.gguf")
    shutil.copy(plain, path)
    with open_checkpoint(path) as checkpoint:
        os.truncate(path, 100_000)
        with pytest.raises(CheckpointError, match=r"shorter\.gguf became shorter while it was read: it ends in "):
            load_weights(checkpoint, read_config(plain), torch.float32, torch.device("cpu"))


def test_a_source_is_another_one_when_its_files_are(checkpoint: Make, tmp_path: Path):
    convert(checkpoint(**SIZES, **FAMILIES["llama"]), tmp_path / "m.gguf", "Q4_0", split_max_tensors=9)
    first, second, *_ = sorted(tmp_path.glob("m-*.gguf"))
    config = read_config(first)
    keys = [source_key(first, config)]
    assert source_key(first, config) == keys[0]
    states = [path.stat() for path in (first, second)]
    for path, state in zip((first, second), states, strict=True):
        content = bytearray(path.read_bytes())
        place = content.index(b".weight")  # in the header, where a safetensors file has numbers of its own
        content[place : place + 7] = b".weighT"
        path.write_bytes(content)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        keys.append(source_key(first, config))
    assert len({*keys}) == 3
    second.unlink()
    with pytest.raises(CheckpointError, match=f"there is no {second}"):
        source_key(first, config)


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        ("F32", {"dtype": "auto"}, "bfloat16"),
        ("BF16", {"dtype": "float32"}, "float32"),
        ("Q8_0", {"dtype": "auto"}, "bfloat16-gguf"),
        ("Q4_K", {"dtype": "float32"}, "float32-gguf"),
        pytest.param("Q4_0", {"dtype": "auto", "quantization": "int8"}, "bfloat16-gguf-int8", marks=needs_cpp),
    ],
)
def test_the_dtype_names_the_computation(
    checkpoint: Make, tmp_path: Path, kind: str, options: dict[str, str], name: str
):
    """A fleet takes no K and V of another one, and mixes no two of them."""
    convert(checkpoint(**SIZES, **FAMILIES["llama"]), path := tmp_path / "m.gguf", kind)
    started = start_executor(ExecutorOptions(model=str(path), num_blocks=8, threads=1, **options))
    assert started.hello.dtype == name


@pytest.fixture(scope="module")
def small(checkpoint: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A file that is to be broken, and what it has at first."""
    sizes = {"preset": "tiny", "family": "llama", "num_layers": 1, "vocab_size": 32}
    convert(checkpoint(**sizes), path := tmp_path_factory.mktemp("small") / "m.gguf", "Q4_1")
    return path, path.read_bytes()


@settings(max_examples=examples(600))
@given(data=st.data())
def test_any_mutation_is_refused_or_gives_weights(small: tuple[Path, bytes], data: st.DataObject):
    path, content = small[0], bytearray(small[1])
    places = st.integers(0, int(len(content) * 0.4))  # the header, most of all
    news = st.binary(max_size=8) | st.sampled_from(
        [number.to_bytes(8, "little") for number in (0, 1, 99, 2**31, 2**63)]
    )
    for place, new in data.draw(st.lists(st.tuples(places, news), min_size=1, max_size=4)):
        content[place : place + len(new)] = new
    path.write_bytes(content)
    try:
        weights, _ = load(path)
    except CheckpointError:
        return
    assert weights.layout.num_parameters == sum(tensor.numel() for tensor in weights.tensors.values())


def anonymous_bytes() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells how much memory is anonymous")
def test_beside_the_weights_there_is_less_than_a_matrix(checkpoint: Make, tmp_path: Path):
    """Of a llama, whose rows are gathered."""
    wide = {"hidden_size": 2048, "intermediate_size": 4096, "num_layers": 1, "vocab_size": 256}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 64}
    folder = checkpoint(**SIZES | {"family": "llama", "dtype": torch.bfloat16} | wide | heads)
    convert(folder, path := tmp_path / "m.gguf", "Q4_K")
    load(path, torch.bfloat16)  # threads and what they allocate once
    peak, before, is_done = 0, anonymous_bytes(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_done.wait(0.0005):
            peak = max(peak, anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    weights, _ = load(path, torch.bfloat16)
    is_done.set()
    watcher.join()
    num_bytes = sum(tensor.nbytes for tensor in weights.tensors.values())
    assert num_bytes > 80e6
    assert peak - before < num_bytes + 2048 * 4096 * 4
