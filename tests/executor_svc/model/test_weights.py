"""Checkpoints of every layout load; broken ones are refused with all that is wrong in them."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from common.errors import CheckpointError
from common.model_files import DEMO_MODEL_DIR
from executor_svc.model.checkpoint import (
    EMBEDDING,
    HEAD,
    INDEX_FILE,
    SINGLE_FILE,
    Checkpoint,
    has_other_head,
    stored_dtype,
)
from executor_svc.model.families import read_config
from executor_svc.model.prepared import Weights
from executor_svc.model.rank_group import SINGLE_RANK, RankGroup
from executor_svc.model.source_key import source_key
from executor_svc.model.weights import load_weights
from executor_svc.options import ExecutorOptions
from executor_svc.startup import start_executor
from tests import ROOT
from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import Driver, start
from tests.executor_svc.ranks import in_threads
from tests.support.checkpoints import EXPERTS, reference_greedy
from tests.support.plain_rights import needs_plain_rights, with_plain_rights

Edit = Callable[[dict[str, torch.Tensor]], object]


def load(folder: Path, dtype: torch.dtype = torch.float32, group: RankGroup = SINGLE_RANK) -> tuple[Weights, str]:
    config = read_config(folder)
    with Checkpoint(folder) as checkpoint:
        return load_weights(checkpoint, config, dtype, torch.device("cpu"), group)


def layer_of(weights: Weights, index: int) -> SimpleNamespace:
    """A layer's parameters by their names."""
    names = {name: name.removeprefix(f"layers.{index}.").removesuffix(".weight") for name in weights.tensors}
    return SimpleNamespace(**{short: weights.tensors[name] for name, short in names.items() if "." not in short})


def table_of(weights: Weights, name: str) -> torch.Tensor:
    return weights.tensors[name if name == "embedding" else f"{name}.weight"]


@pytest.fixture
def edited(checkpoint: Make, tmp_path: Path) -> Callable[[Edit], Path]:
    """A copy of a two-layer checkpoint with its tensors changed by a function."""

    def make(edit: Edit) -> Path:
        source = checkpoint(preset="tiny", num_layers=2)
        tensors = load_file(source / SINGLE_FILE)
        edit(tensors)
        save_file(tensors, tmp_path / SINGLE_FILE)
        shutil.copy(source / "config.json", tmp_path)
        return tmp_path

    return make


@pytest.fixture
def sharded(checkpoint: Make, tmp_path: Path) -> Path:
    """A copy of a checkpoint in three or more shards that may be broken."""
    folder = tmp_path / "sharded"
    shutil.copytree(checkpoint(preset="tiny", num_layers=2, shards=3), folder)
    assert len(list(folder.glob("*.safetensors"))) >= 3
    return folder


def edit_index(folder: Path, edit: Callable[[dict[str, str]], object]) -> None:
    path = folder / INDEX_FILE
    index = json.loads(path.read_bytes())
    edit(index["weight_map"])
    path.write_text(json.dumps(index))


def test_every_tensor_is_where_it_belongs(checkpoint: Make) -> None:
    folder = checkpoint(preset="tiny", num_layers=2, tied=False, attention_bias=True)
    stored = load_file(folder / SINGLE_FILE)
    weights, _ = load(folder)
    assert (weights.tensor("embedding") == stored["model.embed_tokens.weight"]).all()
    assert (weights.matrix("head").parts["weight"] == stored["lm_head.weight"]).all()
    assert (weights.tensor("norm") == stored["model.norm.weight"]).all()
    for index in range(2):
        layer = layer_of(weights, index)

        def tensor(name: str, index: int = index) -> torch.Tensor:
            return stored[f"model.layers.{index}.{name}"]

        assert layer.qkv_bias is not None
        assert (layer.qkv == torch.cat([tensor(f"self_attn.{part}_proj.weight") for part in "qkv"])).all()
        assert (layer.qkv_bias == torch.cat([tensor(f"self_attn.{part}_proj.bias") for part in "qkv"])).all()
        assert (layer.gate_up == torch.cat([tensor(f"mlp.{part}_proj.weight") for part in ("gate", "up")])).all()
        assert (layer.q_norm == tensor("self_attn.q_norm.weight")).all()
        assert (layer.k_norm == tensor("self_attn.k_norm.weight")).all()
        assert (layer.input_norm == tensor("input_layernorm.weight")).all()
        assert (layer.post_attention_norm == tensor("post_attention_layernorm.weight")).all()
        assert (layer.output == tensor("self_attn.o_proj.weight")).all()
        assert (layer.down == tensor("mlp.down_proj.weight")).all()
    assert weights.layout.num_parameters == sum(tensor.numel() for tensor in stored.values())


def test_every_expert_is_where_it_belongs(checkpoint: Make) -> None:
    folder = checkpoint(preset="tiny", num_layers=2, experts=True, mlp_only_layers=[0])
    stored = load_file(folder / SINGLE_FILE)
    weights, _ = load(folder)
    assert "layers.0.gate_up.weight" in weights.tensors
    mlp = layer_of(weights, 1)
    assert (mlp.router == stored["model.layers.1.mlp.gate.weight"]).all()
    for index in range(EXPERTS["num_experts"]):
        gate, up, down = (stored[f"model.layers.1.mlp.experts.{index}.{x}_proj.weight"] for x in ("gate", "up", "down"))
        assert (mlp.experts_gate_up[index] == torch.cat([gate, up])).all()
        assert (mlp.experts_down[index] == down).all()
    assert weights.layout.num_parameters == sum(tensor.numel() for tensor in stored.values())


@pytest.mark.parametrize("size", [2, 4])
def test_shards_put_together_are_the_whole(checkpoint: Make, size: int) -> None:
    """Of 4 heads and 2 KV heads; the vocabulary of 301 is padded to a multiple of 64 for each rank."""
    options = {"experts": True, "mlp_only_layers": [0], "attention_bias": True, "tied": False, "vocab_size": 301}
    folder = checkpoint(preset="tiny", num_layers=2, **options)
    whole, fingerprint = load(folder)
    loaded = in_threads(size, lambda group: load(folder, group=group))
    assert [hashed for _, hashed in loaded] == [fingerprint] * size
    parts = [weights for weights, _ in loaded]
    for name in ("embedding", "head"):
        table = torch.cat([table_of(part, name) for part in parts])
        assert (table[:301] == table_of(whole, name)).all()
        assert not table[301:].any()
    for index in range(2):
        layer, layers = layer_of(whole, index), [layer_of(part, index) for part in parts]
        for name in ("input_norm", "post_attention_norm", "q_norm", "k_norm"):
            assert all((getattr(part, name) == getattr(layer, name)).all() for part in layers)
        assert (torch.cat([part.output for part in layers], 1) == layer.output).all()
        assert [not hasattr(part, "output_bias") for part in layers] == [False, *[True] * (size - 1)]
        assert (layers[0].output_bias == layer.output_bias).all()
        q, k, v = layer.qkv.split_with_sizes([64, 32, 32])
        for rank, part in enumerate(layers):
            heads, kv_heads = 4 // size, max(1, 2 // size)
            first = rank * 2 // size
            own_q = q[rank * heads * 16 : (rank + 1) * heads * 16]
            own_k, own_v = (x[first * 16 : (first + kv_heads) * 16] for x in (k, v))
            assert (part.qkv == torch.cat([own_q, own_k, own_v])).all()
        prefix = "experts_" if index else ""
        gate_ups, downs = ([getattr(part, prefix + name) for part in layers] for name in ("gate_up", "down"))
        gates, ups = zip(*(gate_up.chunk(2, -2) for gate_up in gate_ups), strict=True)
        assert (torch.cat([*gates, *ups], -2) == getattr(layer, f"{prefix}gate_up")).all()
        assert (torch.cat(downs, -1) == getattr(layer, f"{prefix}down")).all()
    assert all((layer_of(part, 1).router == layer_of(whole, 1).router).all() for part in parts)


def fingerprint_of(folder: Path) -> str:
    return start_executor(
        ExecutorOptions(model=str(folder), threads=1, dtype="float32", num_blocks=8)
    ).hello.fingerprint


@pytest.mark.parametrize(
    ("edit", "is_tied"),
    [
        (torch.clone, True),
        (lambda table: table.flip(0), False),
        (lambda table: torch.cat([table[:-1], table[-1:] + 1e-3]), False),
        (lambda table: table.bfloat16(), False),
        (lambda table: table.char(), None),
        (lambda table: table[:-1].clone(), None),
        (lambda table: table[0, 0].clone(), None),
    ],
    ids=["copy", "another", "one row", "rounded", "unreadable", "shape", "scalar"],
)
def test_a_stored_head_that_differs_from_the_embedding_is_the_head(
    edited: Callable[[Edit], Path], checkpoint: Make, edit: Callable[[torch.Tensor], torch.Tensor], is_tied: bool | None
) -> None:
    """Whatever the configuration says, as transformers has it. A copy takes no memory and changes no fingerprint."""
    folder = edited(lambda tensors: tensors.update({HEAD: edit(tensors[EMBEDDING])}))
    if is_tied is None:
        with pytest.raises(CheckpointError, match=r"ties its head .* and has a lm_head\.weight that is .*: remove it"):
            start(folder)
        return
    assert (fingerprint_of(folder) == fingerprint_of(checkpoint(preset="tiny", num_layers=2))) is is_tied
    runner, limits = start(folder, num_blocks=64)
    prompts = [[5, 6, 7], list(range(40))]
    assert Driver(runner, limits).generate(prompts, 12) == [reference_greedy(folder, prompt, 12) for prompt in prompts]
    if is_tied:
        weights, _ = load(folder)
        assert weights.matrix("head").parts["weight"] is weights.tensor("embedding")


def test_a_copy_with_a_nan_is_one_and_malformed_tables_are_refused(edited: Callable[[Edit], Path]) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[EMBEDDING][0, 0] = torch.nan
        tensors[HEAD] = tensors[EMBEDDING].clone()

    folder = edited(spoil)
    with Checkpoint(folder) as opened:
        assert not has_other_head(opened, read_config(folder))
    folder = edited(lambda tensors: tensors.update({EMBEDDING: torch.tensor(1.0), HEAD: torch.tensor(1.0)}))
    with pytest.raises(CheckpointError, match=r"other shapes: model\.embed_tokens\.weight is \[\]"):
        start(folder)


def test_ranks_agree_on_a_head_in_which_one_of_them_finds_a_difference(edited: Callable[[Edit], Path]) -> None:
    folder = edited(lambda tensors: tensors.update({HEAD: torch.cat([tensors[EMBEDDING][:-1], torch.ones(1, 32)])}))

    def found(group: RankGroup) -> bool:
        with Checkpoint(folder) as opened:
            return has_other_head(opened, read_config(folder), group)

    assert in_threads(3, found) == [True] * 3


def test_frequencies_that_older_checkpoints_hold_are_left_out(edited: Callable[[Edit], Path], checkpoint: Make) -> None:
    folder = edited(
        lambda tensors: tensors.update(
            {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(8) for i in (0, 1)}
        )
    )
    assert load(folder)[1] == load(checkpoint(preset="tiny", num_layers=2))[1]


def test_fingerprint_is_of_content_not_of_layout(checkpoint: Make, edited: Callable[[Edit], Path]) -> None:
    _, single = load(checkpoint(preset="tiny", num_layers=2))
    _, shards = load(checkpoint(preset="tiny", num_layers=2, shards=3))
    _, cast = load(checkpoint(preset="tiny", num_layers=2), torch.bfloat16)
    assert re.fullmatch("[0-9a-f]{64}", single)
    assert single == shards == cast
    _, other_seed = load(checkpoint(preset="tiny", num_layers=2, seed=1))
    _, other_theta = load(checkpoint(preset="tiny", num_layers=2, rope={"rope_type": "default", "rope_theta": 1e6}))

    def nudge(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"][3] += 1e-3

    _, nudged = load(edited(nudge))
    assert len({single, other_seed, other_theta, nudged}) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_stored_dtype(checkpoint: Make, dtype: torch.dtype, tmp_path: Path) -> None:
    folder = checkpoint(preset="tiny", num_layers=1, dtype=dtype)
    with Checkpoint(folder) as opened:
        assert stored_dtype(opened, read_config(folder)) == dtype
        fields = json.loads((folder / "config.json").read_bytes())
        fields.pop("dtype", None)
        (tmp_path / "config.json").write_text(json.dumps(fields))
        assert stored_dtype(opened, read_config(tmp_path)) == dtype
        (tmp_path / "config.json").write_text(json.dumps({**fields, "dtype": "float8_e4m3fn"}))
        with pytest.raises(CheckpointError, match="'float8_e4m3fn'; float32, bfloat16 and float16 can be served"):
            stored_dtype(opened, read_config(tmp_path))


def test_missing_unexpected_misshaped_and_unreadable_at_once(edited: Callable[[Edit], Path]) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.self_attn.k_proj.weight"]
        tensors["model.layers.0.self_attn.k_proj.lora"] = torch.zeros(3)
        tensors["model.norm.weight"] = torch.zeros(7)
        tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].to(torch.int8)

    with pytest.raises(CheckpointError) as raised:
        load(edited(edit))
    assert str(raised.value) == (
        "the checkpoint cannot be loaded: it lacks: model.layers.1.self_attn.k_proj.weight; "
        "no model of this configuration has: model.layers.0.self_attn.k_proj.lora; "
        "the configuration gives other shapes: model.norm.weight is [7], not [32]; "
        "only F32, BF16, F16 can be read: model.layers.0.mlp.up_proj.weight is I8"
    )


def test_many_names_are_cut_to_ten_and_a_count(checkpoint: Make, tmp_path: Path) -> None:
    source = checkpoint(preset="tiny", num_layers=2)
    fields = json.loads((source / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "num_hidden_layers": 12, "layer_types": None}))
    shutil.copy(source / SINGLE_FILE, tmp_path)
    with pytest.raises(CheckpointError) as raised:
        load(tmp_path)
    message = str(raised.value)
    assert message.startswith("the checkpoint cannot be loaded: it lacks: model.layers.2.input_layernorm.weight, ")
    assert message.endswith(" and 100 more")
    assert message.count("model.layers.") == 10


def test_untied_configuration_of_a_tied_checkpoint(checkpoint: Make, tmp_path: Path) -> None:
    source = checkpoint(preset="tiny", num_layers=2)
    fields = json.loads((source / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "tie_word_embeddings": False}))
    shutil.copy(source / SINGLE_FILE, tmp_path)
    with pytest.raises(CheckpointError, match=r"it lacks: lm_head\.weight$"):
        load(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 300, -100])
def test_truncated_file(edited: Callable[[Edit], Path], kept: int) -> None:
    path = edited(lambda _: None) / SINGLE_FILE
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=re.escape(f"{path} is truncated or no safetensors file")):
        load(path.parent)


def test_truncated_shard(sharded: Path) -> None:
    path = sorted(sharded.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=re.escape(f"{path} is truncated or no safetensors file")):
        load(sharded)


def test_missing_shard(sharded: Path) -> None:
    path = sorted(sharded.glob("*.safetensors"))[1]
    path.unlink()
    with pytest.raises(CheckpointError, match=re.escape(f"there is no {path}, which the index names")):
        load(sharded)


def test_index_points_to_the_wrong_shard(sharded: Path) -> None:
    name = "model.norm.weight"
    files = sorted(path.name for path in sharded.glob("*.safetensors"))
    actual = json.loads((sharded / INDEX_FILE).read_bytes())["weight_map"][name]
    wrong = next(file for file in files if file != actual)
    edit_index(sharded, lambda weight_map: weight_map.update({name: wrong}))
    complaint = f"{sharded / wrong} lacks what its index says it has: {name}"
    with pytest.raises(CheckpointError, match=re.escape(complaint)):
        load(sharded)


def test_index_omits_a_tensor(sharded: Path) -> None:
    edit_index(sharded, lambda weight_map: weight_map.pop("model.norm.weight"))
    with pytest.raises(CheckpointError, match=r"it lacks: model\.norm\.weight$"):
        load(sharded)


@pytest.mark.parametrize("outside", ["../secret.safetensors", "/etc/passwd", "sub/file.safetensors", ".."])
def test_index_cannot_reach_outside_its_folder(sharded: Path, outside: str) -> None:
    edit_index(sharded, lambda weight_map: weight_map.update({"model.norm.weight": outside}))
    complaint = f"names {outside!r}, which is not a safetensors file of that folder"
    with pytest.raises(CheckpointError, match=re.escape(complaint)):
        load(sharded)


@pytest.mark.parametrize("content", ["", "[]", '{"weight_map": {"a": 1}}', "{}"])
def test_malformed_index(sharded: Path, content: str) -> None:
    (sharded / INDEX_FILE).write_text(content)
    with pytest.raises(CheckpointError, match=r"index\.json cannot be read"):
        load(sharded)


def test_no_weights(checkpoint: Make, tmp_path: Path) -> None:
    shutil.copy(checkpoint(preset="tiny", num_layers=2) / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match=re.escape(f"has neither {SINGLE_FILE} nor {INDEX_FILE}") + "$"):
        load(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"only safetensors are read, not pytorch_model\.bin"):
        load(tmp_path)


@pytest.mark.parametrize("name", [SINGLE_FILE, "model-00001-of-00002.safetensors", INDEX_FILE])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(sharded: Path, name: str) -> None:
    names = sorted(path.name for path in sharded.glob("*.safetensors"))
    path = sharded / (name if name in (SINGLE_FILE, INDEX_FILE) else names[0])
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match=rf"{re.escape(path.name)} is no regular file, but a pipe"):
        load(sharded)
    with pytest.raises(CheckpointError, match="is no regular file, but a pipe"):
        source_key(sharded, read_config(sharded))


@pytest.mark.slow
@needs_plain_rights
@pytest.mark.parametrize("stored", ["single", "sharded"])
def test_weights_that_may_not_be_read_are_not_called_missing(tmp_path: Path, stored: str) -> None:
    shutil.copytree(DEMO_MODEL_DIR, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    if stored == "sharded":
        with safe_open(weights, framework="pt") as file:
            names = list(file.keys())
        weights = weights.rename(tmp_path / "model" / "a.safetensors")
        index = {"weight_map": dict.fromkeys(names, weights.name)}
        (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    weights.chmod(0)
    code = "from pathlib import Path; from executor_svc.model.checkpoint import Checkpoint; Checkpoint(Path({!r}))"
    command = with_plain_rights(sys.executable, "-c", code.format(str(tmp_path / "model")))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith(f"CheckpointError: {weights} cannot be read: Permission denied")
