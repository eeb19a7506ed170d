"""The file of prepared weights: what goes in comes out, nobody changes it, and nothing else is taken for one."""

import fcntl
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from common.errors import BatonError
from common.messages import WeightsKind
from executor_svc.keeper.memory import HUGE_PAGE_BYTES, create_memory, seal_read_only
from executor_svc.model import weight_file
from executor_svc.model.packing import TensorSpec
from executor_svc.model.weight_file import ALIGNMENT, WeightFileError, WeightWriter, place_tensors, read_tensors
from tests.executor_svc.model.small_weight_file import KIND, SPECS, content, read, write
from tests.executor_svc.obtaining import MEMFDS

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.uint8]

specs_of_any_weights = st.dictionaries(
    st.text(min_size=1, max_size=20),
    st.builds(TensorSpec, st.sampled_from(DTYPES), st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)),
    min_size=1,
    max_size=8,
)


def read_bytes(data: bytes) -> dict[str, torch.Tensor]:
    return read_tensors(torch.tensor(list(data), dtype=torch.uint8), SPECS, KIND)[0]


@given(specs=specs_of_any_weights)
def test_what_goes_in_comes_out(specs: dict[str, TensorSpec]) -> None:
    memory, written = write(specs)
    whole_file = MEMFDS.map(memory, os.fstat(memory).st_size)
    os.close(memory)
    manifest, _ = weight_file._read_manifest(whole_file)
    tensors, fingerprint = read_tensors(whole_file, specs, KIND)
    assert (fingerprint, manifest.fingerprint, manifest.kind) == ("f" * 64, "f" * 64, KIND)
    assert list(manifest.tensors) == list(place_tensors(specs)[0])
    for seed, (name, spec) in enumerate(specs.items()):
        for tensor in (tensors[name], written[name]):
            assert TensorSpec.of(tensor) == spec
            assert tensor.data_ptr() % ALIGNMENT == 0
            assert torch.equal(tensor.view(-1).view(torch.uint8), content(spec, seed))


def test_tensors_that_meet_in_a_huge_page() -> None:
    """Making one does not touch what stands in the one before it."""
    specs = {name: TensorSpec(torch.uint8, (HUGE_PAGE_BYTES * 2 // 3,)) for name in "abcdefg"}
    with WeightWriter(specs, KIND, MEMFDS) as writer:
        for seed, (name, spec) in enumerate(specs.items()):
            writer.new(name, spec).copy_(content(spec, seed))
        writer.seal("f" * 64)
        tensors = read(writer.descriptor, specs)
    assert all(torch.equal(tensors[name], content(spec, seed)) for seed, (name, spec) in enumerate(specs.items()))


@given(specs=specs_of_any_weights)
def test_tensors_do_not_overlap(specs: dict[str, TensorSpec]) -> None:
    entries, num_bytes = place_tensors(specs)
    ends = [entry.offset + specs[entry.name].num_bytes for entry in entries]
    assert all(entry.offset >= end for entry, end in zip(entries[1:], ends, strict=False))
    assert ends[-1] == num_bytes


def test_nobody_changes_it() -> None:
    memory, _ = write()
    for change in (
        lambda: os.pwrite(memory, b"x", 0),
        lambda: os.ftruncate(memory, 0),
        lambda: os.ftruncate(memory, 2**20),
        lambda: mmap.mmap(memory, 64, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
        lambda: fcntl.fcntl(memory, fcntl.F_ADD_SEALS, 0),  # no call takes a seal away, and none adds one
    ):
        with pytest.raises(PermissionError):
            change()


WRITE_TO = """
import torch
from tests.executor_svc.model.small_weight_file import read, write
memory, written = write()
tensors = read(memory)
print("written", flush=True)
{}["embedding"].zero_()
print("and survived")
"""


@pytest.mark.parametrize("tensors", ["written", "tensors"])
def test_who_writes_to_it_ends(tensors: str) -> None:
    done = subprocess.run([sys.executable, "-c", WRITE_TO.format(tensors)], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-11, b"written\n"), done.stderr


def test_a_mapping_lives_as_long_as_its_tensors() -> None:
    memory, written = write()
    address = written["embedding"].data_ptr()
    kept = written["layers.0.qkv.scales"].clone()
    os.close(memory)
    last = written["layers.0.qkv.scales"]
    del written
    assert torch.equal(last, kept)
    assert is_mapped(address)
    del last
    assert not is_mapped(address)


def is_mapped(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        bounds = [[int(bound, 16) for bound in line.split()[0].split("-")] for line in maps]
    return any(start <= address < end for start, end in bounds)


def test_huge_pages_where_the_system_has_them() -> None:
    """The address suits them in the writer and in who maps the file."""
    specs = {"table": TensorSpec(torch.uint8, (2 * HUGE_PAGE_BYTES + 5,)), "norm": TensorSpec(torch.float32, (9,))}
    memory, written = write(specs)
    tensors = read(memory, specs)
    assert written["table"].data_ptr() % HUGE_PAGE_BYTES == tensors["table"].data_ptr() % HUGE_PAGE_BYTES == 0
    assert torch.equal(written["table"], tensors["table"])  # touches both
    pages = [huge_bytes(found["table"].data_ptr()) for found in (written, tensors)]
    assert pages in ([0, 0], [2 * HUGE_PAGE_BYTES] * 2)


def huge_bytes(address: int) -> int:
    with open("/proc/self/smaps") as smaps:
        text = smaps.read()
    found = re.search(rf"^{address:x}-.*?^ShmemPmdMapped: +(\d+) kB", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return int(found.group(1)) * 1024


# --- what is no such file ---


def forged(change: Callable[[weight_file.Manifest], object]) -> bytes:
    """A file with another manifest."""
    manifest, data_bytes = weight_file._read_manifest(torch.tensor(list(whole()), dtype=torch.uint8))
    encoded = msgspec.msgpack.encode(change(manifest))
    trailer = weight_file._TRAILER.pack(b"BatonWts", len(encoded), xxhash.xxh3_64_intdigest(encoded))
    return whole()[:data_bytes] + encoded + trailer


def sealed(data: bytes) -> int:
    memory = os.memfd_create("forged", os.MFD_ALLOW_SEALING)
    os.write(memory, data)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    seal_read_only(memory)
    return memory


def whole() -> bytes:
    memory, _ = write()
    return os.pread(memory, 2**20, 0)


def entry(index: int, **fields: object) -> Callable[[weight_file.Manifest], weight_file.Manifest]:
    def change(manifest: weight_file.Manifest) -> weight_file.Manifest:
        entries = list(manifest.tensors)
        entries[index] = msgspec.structs.replace(entries[index], **fields)
        return msgspec.structs.replace(manifest, tensors=tuple(entries))

    return change


def unsealed() -> int:
    memory = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.write(memory, whole())
    return memory


def garbled() -> bytes:
    data = bytearray(whole())
    data[-40] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (unsealed, "that can be cut short"),
        (lambda: create_memory("written", 4096), "that can be written"),
        (lambda: os.open("/proc/self/exe", os.O_RDONLY), "is no memory"),
        (lambda: sealed(b""), "0 bytes cannot be mapped"),
        (lambda: sealed(whole()[:-1]), "a file of 4095 bytes cannot be mapped over 4096"),
        (lambda: sealed(bytes(4096)), "no file of weights"),
    ],
)
def test_no_other_file_is_taken_for_one(make: Callable[[], int], reason: str) -> None:
    with pytest.raises(BatonError, match=reason):
        read(make())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: b"", "it has 0 bytes"),
        (lambda: whole()[:-1], "no file of weights"),
        (lambda: whole()[-100:], "its manifest has [0-9]+ bytes, and the file 100"),
        (lambda: bytes(1000), "no file of weights"),
        (lambda: whole()[-24:], "its manifest has [0-9]+ bytes, and the file 24"),
        (garbled, "its manifest is damaged"),
        (lambda: forged(lambda manifest: msgspec.structs.replace(manifest, version=1)), "version 1, not 3"),
        (lambda: forged(lambda _: {"version": 3}), "cannot be read: .* missing required field"),
        (lambda: forged(lambda manifest: [1]), "cannot be read"),
        (lambda: forged(lambda manifest: msgspec.structs.replace(manifest, kind=replace_kind(rank=1))), "another kind"),
        (lambda: forged(entry(0, name="emb")), r"other tensors: emb, embedding \(2 differ\)"),
        (lambda: forged(entry(1, name="embedding")), "other tensors"),
        (lambda: forged(entry(0, dtype="float16")), r"embedding is float16 \[7, 3\], not bfloat16 \[7, 3\]"),
        (lambda: forged(entry(0, shape=(3, 7))), r"embedding is bfloat16 \[3, 7\], not"),
        (lambda: forged(entry(2, offset=2**40)), "layers.0.qkv.scales lies at 1099511627776"),
        (lambda: forged(entry(0, offset=-256)), "embedding lies at -256"),
        (lambda: forged(entry(0, offset=2)), "embedding lies at 2"),
    ],
)
def test_nothing_else_is_taken_for_one(make: Callable[[], bytes], reason: str) -> None:
    with pytest.raises(WeightFileError, match=reason):
        read_bytes(make())


def replace_kind(**fields: int) -> WeightsKind:
    return msgspec.structs.replace(KIND, **fields)


def test_the_writer_closes_the_file() -> None:
    with WeightWriter(SPECS, KIND, MEMFDS) as writer:
        memory = writer.descriptor
        os.fstat(memory)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(memory)
