"""Memory files: what can be done to them, and what cannot."""

import array
import mmap
import os
import socket

import pytest

from common.errors import KeeperError
from executor_svc.keeper.memory import HUGE_PAGE_BYTES, Mapping, check_memory, create_memory, seal_read_only
from executor_svc.keeper.tag import TAG_BYTES, PoolTag

NUM_BYTES = 3 * HUGE_PAGE_BYTES


@pytest.fixture
def pool():
    fd = create_memory("test-pool", NUM_BYTES)
    yield fd
    os.close(fd)


@pytest.fixture
def mapping():
    mapped = Mapping(NUM_BYTES)
    yield mapped
    mapped.unmap()


def test_a_pool_can_neither_be_cut_short_nor_made_read_only(pool):
    for size in (0, NUM_BYTES - 1, NUM_BYTES + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(pool, size)
    with pytest.raises(KeeperError, match="cannot be sealed"):
        seal_read_only(pool)
    check_memory(pool, NUM_BYTES, read_only=False)


def test_sealed_weights_can_be_written_by_nobody(mapping):
    fd = create_memory("test-weights", NUM_BYTES, to_be_read_only=True)
    mapping.map(fd)
    mapping.buffer()[5] = 7
    with pytest.raises(KeeperError, match="cannot be sealed"):
        seal_read_only(fd)  # it is mapped for writing
    mapping.map_scratch()
    seal_read_only(fd)
    check_memory(fd, NUM_BYTES, read_only=True)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(KeeperError, match="cannot be mapped"):
        mapping.map(fd)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)  # as another process might
    with pytest.raises(PermissionError):
        mmap.mmap(again, NUM_BYTES)
    os.close(again)
    mapping.map(fd, read_only=True)
    assert mapping.buffer()[5] == 7
    os.close(fd)


@pytest.mark.parametrize("read_only", [False, True])
def test_memory_that_could_change_under_a_mapping_is_not_taken(pool, read_only):
    unsealed = os.memfd_create("unsealed")
    os.ftruncate(unsealed, NUM_BYTES)
    sealable = os.memfd_create("sealable", os.MFD_ALLOW_SEALING)
    os.ftruncate(sealable, NUM_BYTES)
    reading, writing = os.pipe()
    for fd in (unsealed, sealable, reading):
        with pytest.raises(KeeperError):
            check_memory(fd, NUM_BYTES, read_only=read_only)
    with pytest.raises(KeeperError, match=f"has to have {NUM_BYTES + 1}"):
        check_memory(pool, NUM_BYTES + 1, read_only=False)
    if read_only:
        with pytest.raises(KeeperError, match="can be written"):
            check_memory(pool, NUM_BYTES, read_only=True)
    for fd in (unsealed, sealable, reading, writing):
        os.close(fd)


def test_files_swap_under_the_same_addresses(pool, mapping):
    buffer = mapping.buffer()
    mapping.map_scratch()
    buffer[NUM_BYTES - 1] = 1
    mapping.map(pool)
    assert buffer[NUM_BYTES - 1] == 0
    buffer[NUM_BYTES - 1] = 2
    mapping.map_scratch()
    assert buffer[NUM_BYTES - 1] == 0
    mapping.map(pool)
    assert buffer[NUM_BYTES - 1] == 2
    assert mapping.address % HUGE_PAGE_BYTES == 0
    with pytest.raises(KeeperError, match="cannot be mapped over"):
        Mapping(NUM_BYTES + 1).map(pool)


def test_huge_pages_keep_the_content(pool, mapping):
    mapping.map(pool)
    buffer = mapping.buffer()
    buffer[7] = 3
    if not mapping.collapse():
        pytest.skip("this kernel cannot collapse memory files (MADV_COLLAPSE, Linux 6.1), or found no huge page")
    assert (buffer[7], buffer[HUGE_PAGE_BYTES]) == (3, 0)
    assert mapping.collapse(HUGE_PAGE_BYTES + 1, HUGE_PAGE_BYTES) is False  # no whole one in there
    assert mapping.collapse(1, 2 * HUGE_PAGE_BYTES)


def test_populated_memory_is_there(pool, mapping):
    mapping.map(pool)
    if not mapping.populate(writable=True):
        pytest.skip("this kernel cannot populate mappings (MADV_POPULATE_WRITE, Linux 5.14)")
    assert os.fstat(pool).st_blocks * 512 == NUM_BYTES
    mapping.map(pool, read_only=True)
    assert mapping.populate(writable=False)


def test_a_tag_says_the_epoch_to_every_process_that_has_it():
    fd = PoolTag.create()
    tag, other = PoolTag(fd), PoolTag(fd)
    assert tag.epoch == 0
    for epoch in (1, 2**40 + 3, 2**53):
        tag.epoch = epoch
        assert other.epoch == epoch
    os.close(fd)


def test_what_is_no_tag_is_refused():
    fd = create_memory("no-tag", TAG_BYTES)
    with pytest.raises(KeeperError, match="tag page begins with 0x0"):
        PoolTag(fd)
    os.close(fd)


def test_descriptors_are_not_inherited(pool):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    from common import messages as m
    from common.packets import PacketConnection

    receiver = PacketConnection(theirs, m.ToKeeper, m.MAX_REQUEST_BYTES)
    PacketConnection(ours, m.FromKeeper, 100).send(m.KeeperQuery(), [pool])
    _, (fd,) = receiver.receive()
    assert not os.get_inheritable(fd)
    assert not os.get_inheritable(pool)
    os.close(fd)
    ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pool]))])
    ours.close()
    receiver.close()
