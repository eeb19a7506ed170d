"""Whatever is wrong with a GGUF file, each command that takes one says so in one line that names the file: no
traceback, no wait, and nothing is left running."""

import json
import os
import shutil
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.support.forked_commands import Call, ForkedCommands
from tests.support.gguf_files import SMALL_LLAMA, STRING, array_key, gguf_bytes, string_key, write_gguf
from tests.support.plain_rights import needs_plain_rights
from tests.support.service_calls import EXECUTOR, SCHEDULER, UP, filled

pytestmark = [needs_plain_rights, pytest.mark.timeout(300)]

COMMANDS = {
    "scheduler --model": (*SCHEDULER, "--no-journal", "--model", "PATH"),
    "scheduler --pooling-model": (*SCHEDULER, "--no-journal", "--pooling-model", "embed=PATH"),
    "executor --model": (*EXECUTOR, "--model", "PATH"),
    "up --model": (*UP, "--no-journal", "--model", "PATH"),
}
SLOW = ("up --model",)
METADATA = {
    **SMALL_LLAMA,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.token_type": [1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
}
TENSORS = {
    "token_embd.weight": (np.zeros((48, 32), np.float32), "F32"),
    "output_norm.weight": (np.zeros(32, np.float32), "F32"),
}
NEEDS_TOKENIZER = ("scheduler --model", "scheduler --pooling-model")
NEEDS_WEIGHTS = ("executor --model",)


def with_metadata(path: Path, **changes: object) -> Path:
    changed = METADATA | {name.replace("__", "."): value for name, value in changes.items()}
    return write_gguf(path, {name: value for name, value in changed.items() if value is not None}, TENSORS)


def made(root: Path) -> dict[str, tuple[Path, str]]:
    """Wrong files: what is wrong with each, where it is, and what has to be said."""
    whole = with_metadata(root / "whole.gguf").read_bytes()
    contents = {
        "nothing": (b"", "is called a GGUF file, and is none"),
        "another format": (bytes(range(256)), "is called a GGUF file, and is none"),
        "magic alone": (b"GGUF", "this is no GGUF file"),
        "cut header": (whole[:300], "the file is truncated: it has 300 bytes"),
        "cut data": (whole[:-100], "output_norm.weight, F32 [32], ends at"),
        "big endian": (gguf_bytes(version=3 << 24), "in big endian"),
        "no architecture": (gguf_bytes([string_key("general.name", "x")]), "there is no general.architecture"),
        "unknown architecture": (gguf_bytes([string_key("general.architecture", "gemma3")]), "is 'gemma3', which is"),
        "unsupported type": (gguf_bytes([], [("t", [256], 10, 0)], 99), "t is stored as Q2_K, which is not supported"),
        "a million tensors": (gguf_bytes(num_tensors=10**6), "1000000 tensors, the limit is 65536"),
        "header of gigabytes": (
            gguf_bytes([array_key("k", STRING, struct.pack("<Q", 2**33), 2)]),
            "the limit for a header is 67108864",
        ),
        "file of a name\nwith a line end": (whole[:300], r"line end.gguf: the file is truncated"),
    }
    found = {}
    for kind, (content, said) in contents.items():
        path = root / f"{kind}.gguf"
        path.write_bytes(content)
        found[kind] = path, said
    os.truncate(root / "header of gigabytes.gguf", 2**34)
    found["a name of no text"] = (
        Path(shutil.copy(root / "whole.gguf", root / os.fsdecode(b"\xff.gguf"))),
        "is not UTF-8",
    )
    (root / "big-00002-of-00002.gguf").write_bytes(whole)
    found["second shard"] = root / "big-00002-of-00002.gguf", f"give the first, {root}/big-00001-of-00002.gguf"
    first = write_gguf(root / "cut.gguf", METADATA, TENSORS, split_max_tensors=1)
    (lost,) = root.glob("cut-00002-of-*.gguf")
    lost.unlink()
    found["lost shard"] = first, f"there is no {lost}"
    no_tokens = {name: None for name in METADATA if name.startswith("tokenizer")}
    found["no tokenizer"] = with_metadata(root / "none.gguf", **no_tokens), "has no tokenizer: there is no tokenizer.gg"
    other = with_metadata(root / "other.gguf", tokenizer__ggml__pre="gpt-4o")
    found["unknown tokenizer"] = other, "tokenizer.ggml.pre is 'gpt-4o', and supported are"
    return found


@pytest.fixture(scope="module")
def root():
    with tempfile.TemporaryDirectory(prefix="baton-test-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "home").mkdir()
        (Path(folder) / "disk").mkdir()
        (Path(folder) / "home").chmod(0o777)
        yield Path(folder).resolve()


@pytest.fixture(scope="module")
def commands(root):
    running = ForkedCommands(root / "disk")
    yield running
    running.close()


@pytest.fixture(scope="module")
def files(root):
    return made(root)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in COMMANDS])
def test_each_kind_of_wrong_file_is_one_line(name, root, files, commands):
    environment = {"HF_HUB_OFFLINE": "1", "HOME": str(root / "home"), "XDG_STATE_HOME": None}
    complaints = {}
    for kind, (path, said) in files.items():
        if (kind == "lost shard" and name in NEEDS_TOKENIZER) or (kind == "no tokenizer" and name in NEEDS_WEIGHTS):
            continue
        done = commands.run(Call(filled(COMMANDS[name], str(path)), environment, folder=str(root / "home")))
        lines = [line for line in done.stderr.splitlines() if said in line]
        if done.exit_code != 2 or "Traceback" in done.stdout + done.stderr or not lines:
            complaints[kind] = f"{done.exit_code} {done.stdout[-300:]} {done.stderr[-700:]}"
    assert not complaints, json.dumps(complaints, indent=1)
