"""Other weights have another fingerprint, also where somebody has chosen them with care; the same ones keep theirs."""

import json
import os
import shutil
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import xxhash
from blake3 import blake3
from safetensors.torch import load_file, save_file

from executor_svc.model.checkpoint import SINGLE_FILE, Checkpoint
from executor_svc.model.config import identity
from executor_svc.model.families import read_config
from tests.executor_svc.conftest import Make
from tests.executor_svc.fake_keeper import FakeKeeper
from tests.executor_svc.obtaining import assert_equal, obtain

# --- two tensors of one xxh3 ---

SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578")
"""The beginning of what every build of XXH3 mixes with its input, in 8 bytes for each of the first stripes."""
LOW = 2**32 - 1


def with_the_same_xxh3(data: bytes, number: float) -> bytes:
    """The same bytes, but for a first bfloat16 of one's choice, and 16 that make up for it.

    XXH3 adds up what words of 8 bytes give, in 16 stripes of 64 bytes: of the first word v in a stripe, v itself and
    the product of the halves of v ^ secret. So four words at will give any two sums (mod 2^64).
    """
    places = range(0, 5 * 64, 64)
    keys = struct.unpack("<5Q", SECRET)
    words = [struct.unpack_from("<Q", data, place)[0] for place in places]
    sum_of_words = sum(words)
    sum_of_products = sum(product(word ^ key) for word, key in zip(words, keys, strict=True))
    words[0] = words[0] & ~0xFFFF | struct.unpack("<I", struct.pack("<f", number))[0] >> 16
    high, low = divmod((sum_of_products - product(words[0] ^ keys[0])) % 2**64, LOW)
    words[1] = (high << 32 | LOW) ^ keys[1]  # product: high * LOW
    words[2] = (1 << 32 | low) ^ keys[2]  # product: low
    rest = (sum_of_words - sum(words[:3]) - (keys[3] & LOW) - (keys[4] & ~LOW)) % 2**64
    words[3] = rest & ~LOW | keys[3] & LOW  # no product: its lower half is 0
    words[4] = keys[4] & ~LOW | rest & LOW  # no product: its upper half is 0
    forged = bytearray(data)
    for place, word in zip(places, words, strict=True):
        struct.pack_into("<Q", forged, place, word)
    return bytes(forged)


def product(word: int) -> int:
    return (word & LOW) * (word >> 32)


NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(checkpoint: Make, tmp_path: Path) -> Path:
    """A checkpoint in bfloat16 that may be changed."""
    shutil.copytree(checkpoint(preset="tiny", num_layers=2, dtype=torch.bfloat16), tmp_path / "model")
    return tmp_path / "model"


def forge(folder: Path) -> None:
    """Another tensor, of the same xxh3."""
    tensors = load_file(folder / SINGLE_FILE)
    data = tensors[NAME].view(torch.uint8).numpy().tobytes()
    forged = with_the_same_xxh3(data, 1000.0)
    assert xxhash.xxh3_128_digest(forged) == xxhash.xxh3_128_digest(data), "or this test shows nothing"
    changed = torch.frombuffer(bytearray(forged), dtype=torch.bfloat16).view(tensors[NAME].shape)
    assert changed.flatten()[0] == 1000
    save_file({**tensors, NAME: changed}, folder / SINGLE_FILE, metadata={"format": "pt"})


# --- the bytes stay, and mean something else ---


def as_another_dtype(folder: Path) -> None:
    """The header says float16 of a tensor in bfloat16: a number has 16 bits in both."""
    path = folder / SINGLE_FILE
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = msgspec.json.decode(data[8 : 8 + length])
    assert header[NAME]["dtype"] == "BF16"
    header[NAME]["dtype"] = "F16"
    changed = msgspec.json.encode(header).ljust(length)
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + length :])


@pytest.mark.parametrize("change", [forge, as_another_dtype])
def test_forged_weights_are_not_taken_for_those_of_a_clean_folder(
    folder: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """A keeper that met them first had them for whoever brought the fingerprint."""
    clean = shutil.copytree(folder, tmp_path / "clean")
    change(folder)
    keeper = FakeKeeper()
    forged, honest = obtain(folder, keeper), obtain(clean, keeper)
    assert forged.fingerprint != honest.fingerprint
    assert_equal(honest, obtain(clean, None))
    assert_equal(honest, obtain(clean, keeper, verify=True))


# --- the same model, a later release ---

SMALL: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
}
LARGE = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32}
SPARSE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
}
YARN = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}


@pytest.mark.parametrize(
    ("changes", "score_token", "expected"),
    [
        ({}, None, "e293a54961bff585e7f7c4c5d614bf5e837343b3a9b81fff859c29635b1ec315"),
        (
            {**LARGE, "tie_word_embeddings": False, "attention_bias": True},
            None,
            "374f6fe01c64200d4ff968548b35a2012aeb701d601b0fd10f306c05e9b4a95f",
        ),
        (YARN, None, "22bf02eb5b51db06fa47023ff3196c9490919561d5f29b9627dcc6063e4ec460"),
        (SPARSE, None, "c9637fb9a2508aad9d6b4e08490cf9e61511e7a68be84f2140c399b92c3ae332"),
        ({}, 9693, "1e0c155b3cfea9fa9cf92544de00c0ae00c4e31294a87d952fa9c0c8101293f9"),
    ],
    ids=["tied", "biases", "yarn", "experts", "classifier"],
)
def test_the_identity_of_a_qwen3_stays_what_it_was_before_other_families(
    tmp_path: Path, changes: dict[str, Any], score_token: int | None, expected: str
) -> None:
    """Journals, kept weights and executors of an earlier release have it: these five were computed at da3ead43."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL | changes))
    config = read_config(tmp_path)
    if score_token is not None:
        config = msgspec.structs.replace(config, tied=False, score_token=score_token)
    assert blake3(identity(config)).hexdigest() == expected


# --- where hashes are computed ---


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_hashing_is_not_bound_to_the_cpu_of_who_asks_for_it(folder: Path) -> None:
    """The main thread is bound to one before it reads, and would wait for its own hashes there."""
    seen: list[set[int]] = []

    def read() -> None:
        before = os.sched_getaffinity(0)
        with Checkpoint(folder) as checkpoint:
            os.sched_setaffinity(0, {min(before)})
            checkpoint.digest(NAME).result()
            (hashing,) = [thread for thread in threading.enumerate() if thread.name.startswith("hash")]
            assert hashing.native_id is not None
            seen.extend([before, os.sched_getaffinity(hashing.native_id)])

    reader = threading.Thread(target=read)  # whose CPUs are its own
    reader.start()
    reader.join()
    before, hashing = seen
    assert hashing == before
