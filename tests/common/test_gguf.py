"""The reader of GGUF files: as llama.cpp's own reader on good files, and a clear error for each bad one."""

import os
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import gguf as ours
from common.errors import CheckpointError
from common.gguf import (
    MAX_HEADER_BYTES,
    MAX_KEYS,
    MAX_SHARDS,
    MAX_TENSORS,
    MAX_VALUES,
    SUPPORTED_TYPES,
    Gguf,
    ShardName,
    read_gguf,
)
from tests.support.effort import examples
from tests.support.gguf_files import array_key, gguf_bytes, number_key, string_key, text, write_gguf

U32, F32, STRING, ARRAY = 4, 6, 8, 9
TYPE_F32, TYPE_Q4_0, TYPE_Q2_K, TYPE_Q4_K = 0, 2, 10, 12

METADATA = {
    "llama.block_count": 2,
    "llama.rope.freq_base": 10000.5,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.chat_template": "{{ 'größer' }}\n" * 1000,
    "tokenizer.ggml.tokens": ["", "a", "▁wörd", "😀", "\x00"] + [f"token {i}" for i in range(40_000)],
    "tokenizer.ggml.scores": [0.5, -1e30, 3.0],
    "tokenizer.ggml.token_type": [1, 2, -3],
    "general.languages": ["en"],
}


def block_bytes(shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Rows of zeros, as they are stored."""
    block, num_bytes = SUPPORTED_TYPES[kind]
    return np.zeros((*shape[:-1], shape[-1] // block * num_bytes), np.uint8)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A file with a tensor of each type."""
    tensors = {f"blk.{kind}.weight": (block_bytes((3, 512), kind), kind) for kind in SUPPORTED_TYPES}
    tensors |= {"norm": (np.ones(5, np.float32), "F32"), "cube": (np.ones((2, 3, 4, 5), np.float32), "F32")}
    return write_gguf(tmp_path / "model.gguf", METADATA, tensors)


def assert_as_the_reference(model: Gguf, path: Path) -> None:
    reference = gguf.GGUFReader(path)
    own = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"}
    fields = {name: field.contents() for name, field in reference.fields.items() if name not in own}
    assert fields == {name: value for name, value in model.metadata.items() if name in fields}
    assert all(value == [] for name, value in model.metadata.items() if name not in fields)
    for tensor in reference.tensors:
        found = model.tensors[tensor.name]
        assert (found.shape, found.kind) == (tuple(tensor.shape[::-1].tolist()), tensor.tensor_type.name)
        assert (found.offset, found.num_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert found.path == path


def test_a_file_is_read_as_the_reference_reads_it(whole: Path):
    model = read_gguf(whole)
    assert_as_the_reference(model, whole)
    assert len(model.tensors) == len(SUPPORTED_TYPES) + 2
    assert model.metadata["general.architecture"] == "llama"
    first = min(model.tensors.values(), key=lambda tensor: tensor.offset)
    assert first.offset - 32 < model.header_bytes[whole] <= first.offset


def test_each_type_of_value_is_read(tmp_path: Path):
    extremes = {"B": 255, "b": -128, "H": 65535, "h": -32768, "I": 2**32 - 1, "i": -(2**31), "f": 0.5, "?": True}
    extremes |= {"Q": 2**64 - 1, "q": -(2**63), "d": 1e300}
    keys = [number_key(f"one.{layout}", layout, number) for layout, number in extremes.items()]
    for layout, number in extremes.items():
        _, kind, value = number_key("", layout, number)
        keys += [array_key(f"some.{layout}", kind, value * 3, 3), array_key(f"none.{layout}", kind, b"", 0)]
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes([*keys, array_key("strings", STRING, text("é") + text(""), 2)]))
    metadata = read_gguf(path).metadata
    for layout, number in extremes.items():
        for found in (metadata[f"one.{layout}"], metadata[f"some.{layout}"][2]):
            assert found == number
            assert type(found) is type(number)
        assert (metadata[f"some.{layout}"], metadata[f"none.{layout}"]) == ([number] * 3, [])
    assert metadata["strings"] == ["é", ""]


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_the_alignment_is_the_files(tmp_path: Path, alignment: int):
    path = tmp_path / "a.gguf"
    key = number_key("general.alignment", "I", alignment)
    tensors = [("a", [4], TYPE_F32, 0), ("b", [4], TYPE_F32, alignment * 2)]
    path.write_bytes(gguf_bytes([key], tensors, 2 * alignment + 16, alignment=alignment))
    model = read_gguf(path)
    assert [tensor.offset % alignment for tensor in model.tensors.values()] == [0, 0]
    assert path.stat().st_size == model.tensors["b"].offset + 16


def test_version_2_is_as_3(tmp_path: Path):
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes([string_key("a", "b")], [("t", [2], TYPE_F32, 0)], 8, version=2))
    assert read_gguf(path).metadata == {"a": "b"}


NESTED = array_key("nested", ARRAY, struct.pack("<IQ", U32, 1) + bytes(4), 1)
TWICE = [("a", [4], TYPE_F32, 0), ("a", [4], TYPE_F32, 32)]
BAD = {
    "empty": (b"", "this is no GGUF file"),
    "short": (b"GGUF\3\0\0\0", "this is no GGUF file"),
    "another format": (bytes(100), "this is no GGUF file"),
    "version 1": (gguf_bytes(version=1), "a GGUF file of version 1, and only 2 and 3 are supported"),
    "version 4": (gguf_bytes(version=4), "a GGUF file of version 4"),
    "big endian": (gguf_bytes(version=3 << 24), "a GGUF file in big endian, and only little endian is supported"),
    "a million tensors": (gguf_bytes(num_tensors=10**6), f"has 1000000 tensors, the limit is {MAX_TENSORS}"),
    "more tensors than numbers": (gguf_bytes(num_tensors=2**64 - 1), f"has {2**64 - 1} tensors, the limit is"),
    "keys": (gguf_bytes(num_keys=2**63), f"has {2**63} keys, the limit is {MAX_KEYS}"),
    "tensors that are not there": (gguf_bytes(num_tensors=9)[:24], "truncated: .* the name of a tensor ends at"),
    "keys that are not there": (gguf_bytes(num_keys=9)[:24], "truncated: .* the name of a key ends at"),
    "a key twice": (gguf_bytes([string_key("a.b", "c"), string_key("a.b", "d")]), r"the key a\.b is there twice"),
    "a key without a name": (gguf_bytes([string_key("", "c")]), "the name of a key has 0 bytes"),
    "a long key": (gguf_bytes([string_key("k" * 1025, "c")]), "a key has 1025 bytes, allowed are 1 to 1024"),
    "a key that acts on terminals": (gguf_bytes([string_key("a\x1b[2J", "c")]), r"the name of a key is 'a\\x1b\[2J'"),
    "a key that is no text": (gguf_bytes([(b"\xff", STRING, text("a"))]), "the name of a key is not in UTF-8"),
    "a string that is no text": (gguf_bytes([string_key("k", b"a\xc3")]), "the value of k is not in UTF-8"),
    "a surrogate": (gguf_bytes([string_key("k", b"\xed\xa0\x80")]), "the value of k is not in UTF-8"),
    "a string beyond the end": (
        gguf_bytes([("k", STRING, struct.pack("<Q", 1000) + b"abc")]),
        r"the file is truncated: it has \d+ bytes, and the value of k ends at 10\d\d",
    ),
    "a string of any length": (
        gguf_bytes([("k", STRING, struct.pack("<Q", 2**64 - 1) + b"abc")]),
        rf"the value of k ends at {2**64 + 44}",
    ),
    "a type that there is not": (gguf_bytes([("k", 13, b"")]), "the value of k has the type 13, which GGUF does not"),
    "an array of it": (gguf_bytes([array_key("k", 77, b"", 3)]), "the value of k has the type 77"),
    "an array of arrays": (gguf_bytes([NESTED]), "the value of nested is an array of arrays, which is not supported"),
    "a long array": (
        gguf_bytes([array_key("k", U32, b"", 2**60)]),
        f"with the value of k, arrays have {2**60} values, the limit is {MAX_VALUES}",
    ),
    "long arrays": (
        gguf_bytes([array_key("k", 0, bytes(MAX_VALUES // 2), MAX_VALUES // 2), array_key("l", 0, b"", MAX_VALUES)]),
        f"with the value of l, arrays have {MAX_VALUES * 3 // 2} values",
    ),
    "an array beyond the end": (gguf_bytes([array_key("k", U32, bytes(8), 2000)]), "and the value of k ends at 8"),
    "strings beyond the end": (gguf_bytes([array_key("k", STRING, text("a"), 2000)]), "truncated: .* the value of k"),
    "a cut array of numbers": (gguf_bytes([array_key("k", U32, b"", 2)])[:56], "truncated: .* the value of k"),
    "no alignment": (gguf_bytes([number_key("general.alignment", "I", 0)]), "general.alignment is 0, and not a power"),
    "an odd alignment": (gguf_bytes([number_key("general.alignment", "I", 24)]), "general.alignment is 24"),
    "an alignment in words": (gguf_bytes([string_key("general.alignment", "x")]), "general.alignment is 'x'"),
    "a tensor twice": (gguf_bytes([], TWICE, 64), "the tensor a is there twice"),
    "a long name": (gguf_bytes([], [("n" * 2000, [4], 0, 0)], 16), "the name of a tensor has 2000 bytes"),
    "no dimension": (gguf_bytes([], [("t", [], 0, 0)], 16), "t has 0 dimensions, allowed are 1 to 4"),
    "five dimensions": (gguf_bytes([], [("t", [1] * 5, 0, 0)], 16), "t has 5 dimensions"),
    "absurd dimensions": (
        gguf_bytes([], [("t", [2**63, 2**63, 2**63, 4], TYPE_F32, 0)], 16),
        rf"truncated: it has \d+ bytes, and t, F32 \[4, {2**63}, {2**63}, {2**63}\], ends at {2**193 + 96}",
    ),
    "a dimension of nothing": (gguf_bytes([], [("t", [4, 0], TYPE_F32, 0)], 16), r"t is \[0, 4\], which is nothing"),
    "half a block": (gguf_bytes([], [("t", [48, 2], TYPE_Q4_0, 0)], 99), r"t is \[2, 48\]: rows of Q4_0 have a mult"),
    "less than a block": (gguf_bytes([], [("t", [576, 2], TYPE_Q4_K, 0)], 999), r"rows of Q4_K have a multiple of 256"),
    "beyond the end": (gguf_bytes([], [("t", [4], TYPE_F32, 0)], 15), r"truncated: it has 79 bytes, and t, F32 \[4\]"),
    "far beyond": (gguf_bytes([], [("t", [4], TYPE_F32, 2**64 - 32)], 16), f"ends at {2**64 + 48}"),
    "unaligned": (gguf_bytes([], [("t", [4], TYPE_F32, 4)], 99), "t is at 4 in the data, which is no multiple of the"),
    "overlapping": (
        gguf_bytes([], [("t", [9], TYPE_F32, 0), ("u", [4], TYPE_F32, 32)], 99),
        "u begins at byte 128, and t ends at 132",
    ),
    "a type that is not supported": (
        gguf_bytes([], [("t", [256], TYPE_Q2_K, 0)], 99),
        rf"t is stored as Q2_K, which is not supported \(supported: {', '.join(SUPPORTED_TYPES)}\)",
    ),
    "a type of ints": (gguf_bytes([], [("t", [4], 26, 0)], 99), "t is stored as I32, which is not supported"),
    "a removed type": (gguf_bytes([], [("t", [32], 31, 0)], 99), "t is stored as Q4_0_4_4, which is not"),
    "an unknown type": (gguf_bytes([], [("t", [4], 2**31, 0)], 99), f"t is stored as type {2**31}, which is not"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, case: str):
    content, fault = BAD[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=fault) as refused:
        read_gguf(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert len(str(refused.value)) < 600


def test_each_supported_type_is_known_by_the_references_number_and_size():
    names = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    assert {number: ours._TYPE_NAMES[number] for number in names} == names
    sizes = {kind.name: size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: sizes[kind] for kind in SUPPORTED_TYPES} == SUPPORTED_TYPES


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "nothing", "below a file"])
def test_only_a_regular_file_is_opened(tmp_path: Path, kind: str):
    path = tmp_path / "model.gguf"
    said = f"model.gguf is no regular file, but a {kind}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        said = "there is no .*model.gguf"
        if kind == "below a file":
            path.write_bytes(gguf_bytes())
            path /= "model.gguf"
    with pytest.raises(CheckpointError, match=said):
        read_gguf(path)


def test_every_cut_of_a_file_is_refused(whole: Path):
    """Above all where a number or a string is cut in two."""
    content = whole.read_bytes()
    header = read_gguf(whole).header_bytes[whole]
    places = [*range(60), *range(header - 60, header), *range(0, len(content), len(content) // 50)]
    for place in places:
        whole.write_bytes(content[:place])
        with pytest.raises(CheckpointError, match=r"no GGUF file|truncated"):
            read_gguf(whole)


@pytest.mark.parametrize(
    ("size", "content"),
    [
        (2**42, gguf_bytes([("k", STRING, struct.pack("<Q", 3 * 2**30))])),
        (2**42, gguf_bytes([array_key("k", STRING, struct.pack("<Q", MAX_HEADER_BYTES), 2)])),
        (2**42, gguf_bytes([array_key("k", 10, b"", MAX_VALUES), array_key("l", STRING, b"", MAX_VALUES)])),
        (2**42, gguf_bytes(num_keys=MAX_KEYS)),
        (2**42, gguf_bytes(num_tensors=MAX_TENSORS)),
    ],
    ids=["a string", "strings", "numbers", "keys", "tensors"],
)
def test_a_header_of_gigabytes_takes_no_memory(tmp_path: Path, size: int, content: bytes):
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.write(content)
        file.truncate(size)  # a file of holes, on a small disk
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=r"model\.gguf: "):
        read_gguf(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * MAX_HEADER_BYTES


def split(folder: Path, count: int = 3) -> list[Path]:
    """A model of two tensors a shard."""
    tensors = {f"t.{i}": (np.full((2, 3), i, np.float32), "F32") for i in range(2 * count)}
    first = write_gguf(folder / "big.gguf", {"a": 1}, tensors, split_max_tensors=2)
    return [first.with_name(f"big-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]


def test_shards_are_one_model(tmp_path: Path):
    shards = split(tmp_path)
    model = read_gguf(shards[0])
    assert list(model.header_bytes) == shards
    assert model.metadata["a"] == 1
    found: set[str] = set()
    for path in shards:
        reference = {tensor.name: tensor.data_offset for tensor in gguf.GGUFReader(path).tensors}
        assert {name: model.tensors[name].offset for name in reference} == reference
        assert {model.tensors[name].path for name in reference} == {path}
        found |= reference.keys()
    assert found == model.tensors.keys()
    shards[1].unlink()
    assert list(read_gguf(shards[0], all_shards=False).header_bytes) == [shards[0], shards[2]]
    with pytest.raises(CheckpointError, match=f"there is no {shards[1]}"):
        read_gguf(shards[0])
    with pytest.raises(CheckpointError, match=r"is shard 3 of 3 of a model: .*big-00001-of-00003\.gguf"):
        read_gguf(shards[2])


def test_shards_that_do_not_belong_together_are_refused(tmp_path: Path):
    shards = split(tmp_path)
    contents = [path.read_bytes() for path in shards]

    def refused(fault: str, *parts: bytes, first: Path = shards[0]) -> None:
        for path, content in zip(shards, parts or contents, strict=True):
            path.write_bytes(content)
        with pytest.raises(CheckpointError, match=fault):
            read_gguf(first)

    refused("00002-of-00003.gguf has split.no 2, and not 1", contents[0], contents[2], contents[1])
    refused("00001-of-00003.gguf has split.no 1, and the first shard has 0", contents[1], contents[0], contents[2])
    other = split(tmp_path, count=2)
    refused("00002-of-00003.gguf has split.count 2, and big-00001", contents[0], other[1].read_bytes(), contents[2])
    twice = contents[1].replace(b"t.2", b"t.0")
    refused("00002-of-00003.gguf has the tensor t.0, and so has big-00001", contents[0], twice, contents[2])
    fewer = gguf_bytes([number_key("split.no", "H", 1), number_key("split.count", "H", 3)])
    refused("has 4 tensors in its shards, its split.tensors.count is 6", contents[0], fewer, contents[2])
    (renamed := tmp_path / "renamed.gguf").write_bytes(contents[0])
    refused("is a whole model by its name, and one of 3 shards by its split.count", first=renamed)
    (renamed := tmp_path / "big-00001-of-00004.gguf").write_bytes(contents[0])
    refused("is one of 4 shards by its name, and one of 3 shards by its split.count", first=renamed)
    said = contents[0].replace(b"split.count\x02\0\0\0\x03", b"split.count\x08\0\0\0\x00")
    refused("truncated|split.count", said, contents[1], contents[2])
    many = tmp_path / f"many-00001-of-{MAX_SHARDS + 1:05}.gguf"
    many.write_bytes(gguf_bytes([number_key("split.count", "H", MAX_SHARDS + 1)]))
    refused(f"is one of {MAX_SHARDS + 1} shards, the limit is {MAX_SHARDS}", first=many)
    many.write_bytes(gguf_bytes([string_key("split.count", "many")]))
    refused("has split.count 'many', which is no whole number", first=many)


def test_limits_are_of_all_shards_together(tmp_path: Path):
    """The last one alone has less than each limit."""
    *_, last = shards = split(tmp_path)
    [*others, _] = read_gguf(shards[0]).header_bytes.values()
    place = [number_key("split.no", "H", 2), number_key("split.count", "H", 3)]
    length = MAX_HEADER_BYTES - sum(others)
    last.write_bytes(header := gguf_bytes([*place, ("long", STRING, struct.pack("<Q", length))]))
    assert len(header) + length < MAX_HEADER_BYTES
    os.truncate(last, MAX_HEADER_BYTES)
    with pytest.raises(CheckpointError, match=r"00003-of-00003\.gguf: .* the limit for a header"):
        read_gguf(shards[0])
    last.write_bytes(gguf_bytes(place, num_tensors=MAX_TENSORS - 3))
    fault = rf"00003-of-00003\.gguf: the file has {MAX_TENSORS - 3} tensors, the limit is {MAX_TENSORS - 4}"
    with pytest.raises(CheckpointError, match=fault):
        read_gguf(shards[0])


def test_names_of_shards():
    assert ShardName.of(Path("/a/b-c-00002-of-00010.gguf")) == ShardName("b-c", 2, 10)
    assert ShardName("b-c", 2, 10).sibling(1) == "b-c-00001-of-00010.gguf"
    for name in ("b.gguf", "b-00001-of-00002", "-00001-of-00002.gguf", "b-1-of-2.gguf", "b-00001-of-00002.gguf.part"):
        assert ShardName.of(Path(name)) is None


SMALL = gguf_bytes(
    [
        string_key("general.architecture", "llama"),
        number_key("general.alignment", "I", 32),
        number_key("a.float", "f", 1.5),
        number_key("a.bool", "?", 1),
        array_key("tokens", STRING, text("a") + text("bc") + text("é"), 3),
        array_key("scores", F32, struct.pack("<3f", 1, 2, 3), 3),
    ],
    [("token_embd.weight", [4, 3], TYPE_F32, 0), ("q", [32, 2], TYPE_Q4_0, 64), ("k", [256], TYPE_Q4_K, 128)],
    128 + 144,
)
EXTREMES = [0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 33, 2**64 - 1]
PLACES = st.integers(0, len(SMALL))
EDITS = st.one_of(
    st.tuples(PLACES, st.integers(0, 16), st.binary(max_size=16)),  # replace some bytes by others
    st.tuples(PLACES, st.just(8), st.sampled_from([number.to_bytes(8, "little") for number in EXTREMES])),
    st.tuples(PLACES, st.just(4), st.integers(0, 45).map(lambda number: number.to_bytes(4, "little"))),
    st.tuples(PLACES, st.just(len(SMALL)), st.just(b"")),  # cut
)


@pytest.fixture(scope="module")
def mutated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutated") / "small.gguf"


@settings(max_examples=examples(1000))
@given(edits=st.lists(EDITS, max_size=4))
def test_any_mutation_is_refused_or_well_formed(mutated: Path, edits: list[tuple[int, int, bytes]]):
    content = bytearray(SMALL)
    for place, length, new in edits:
        content[place : place + length] = new
    mutated.write_bytes(content)
    try:
        model = read_gguf(mutated)
    except CheckpointError:
        return
    ends = [0]
    for tensor in sorted(model.tensors.values(), key=lambda tensor: tensor.offset):
        block, num_bytes = SUPPORTED_TYPES[tensor.kind]
        assert tensor.num_bytes == int(np.prod(tensor.shape)) // block * num_bytes > 0
        assert ends[-1] <= tensor.offset
        ends.append(tensor.offset + tensor.num_bytes)
    assert ends[-1] <= len(content)
    assert model.header_bytes[mutated] <= len(content)
