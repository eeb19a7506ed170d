"""The block manager by itself: the transaction, the cache's rules, and the order of eviction."""

from array import array

import pytest

from scheduler_svc.core.executor.block_manager import BlockManager, BlockTable, Grant, hash_block


class Holder:
    """A sequence as the block manager sees it: tokens, how many are computed, and a table."""

    def __init__(self, tokens, salt=""):
        self.tokens = array("i", tokens)
        self.num_computed = 0
        self.blocks = BlockTable(salt.encode())

    @property
    def table(self):
        return list(self.blocks.ids)

    @property
    def raw(self):
        return self.tokens.tobytes()


ALIVE: list[Holder] = []


@pytest.fixture(autouse=True)
def _forget():
    ALIVE.clear()


def alive(*args, **kwargs):
    ALIVE.append(Holder(*args, **kwargs))
    return ALIVE[-1]


def reserve(manager, seq, budget=10**6, **kwargs):
    grant = manager.reserve(seq.blocks, seq.raw, seq.num_computed, budget, **kwargs)
    if grant is not None:
        seq.num_computed = grant.start + grant.count
    manager.check(holder.blocks for holder in ALIVE)
    for holder in ALIVE:
        assert len(holder.table) == manager.blocks_for(holder.num_computed)
    return grant


def release(manager, seq):
    manager.release(seq.blocks)
    seq.num_computed = 0


def publish(manager, seq):
    """What a commit does: enter the full blocks of known tokens, merging duplicates."""
    full = seq.num_computed // manager.block_size * manager.block_size
    manager.publish(seq.blocks, seq.tokens[:full].tobytes(), 0, may_merge=True)


def decode(manager, seq, token):
    """One decoded token: its row, and its commit."""
    seq.tokens.append(token)
    if seq.num_computed == len(seq.table) * manager.block_size:
        seq.blocks.ids.extend(manager.allocate(1))
    seq.num_computed += 1
    publish(manager, seq)
    manager.check(holder.blocks for holder in ALIVE)


def count_hits(manager, tokens):
    return len(manager.match(BlockTable(), array("i", tokens).tobytes())) * manager.block_size


@pytest.mark.parametrize("size", [1, 2, 3, 4, 16])
def test_the_table_follows_the_count_over_every_boundary(size):
    manager = BlockManager(64, size)
    seq = alive(range(5))
    assert reserve(manager, seq) == Grant(start=0, count=5, store_from=0, num_hits=0, num_new=-(-5 // size))
    for length in range(6, 40):
        decode(manager, seq, length)
        assert len(seq.table) == -(-length // size)
        assert len(set(seq.table)) == len(seq.table)
    release(manager, seq)
    assert manager.num_free == 64


def test_two_equal_prompts_share_all_full_blocks_and_compute_the_rest_once_each():
    """801 tokens in blocks of 256: 3 shared, 1 each; the report against nano-vllm saw 8."""
    manager = BlockManager(16, 256)
    first, second = alive(range(801)), alive(range(801))
    assert reserve(manager, first).count == 801
    assert reserve(manager, second) == Grant(start=768, count=33, store_from=768, num_hits=3, num_new=1)
    assert manager.num_blocks - manager.num_free == 5
    assert [manager.ref_counts[b] for b in first.table] == [2, 2, 2, 1]


def test_a_full_prompt_hit_computes_one_token_and_writes_none():
    manager = BlockManager(8, 4)
    first, second = alive(range(8)), alive(range(8))
    reserve(manager, first)
    assert reserve(manager, second) == Grant(start=7, count=1, store_from=8, num_hits=2, num_new=0)
    assert second.table == first.table
    assert second.num_computed == 8


def test_nothing_changes_when_blocks_are_missing():
    manager = BlockManager(4, 4)
    first, second = alive(range(12)), alive([*range(4), 90, 91, 92, 93, 94])
    reserve(manager, first)
    assert reserve(manager, second) is None
    assert (second.table, second.num_computed, manager.num_free) == ([], 0, 1)
    assert [manager.ref_counts[b] for b in first.table] == [1, 1, 1], "the hit was not pinned"


def test_room_for_the_whole_prompt_and_not_only_for_the_first_chunk():
    seq = alive(range(20))
    assert reserve(BlockManager(4, 4), seq, budget=4, accept=lambda num_shared: True) is None
    assert reserve(BlockManager(5, 4), seq, budget=4, accept=lambda num_shared: True).num_new == 1


def test_a_running_prompt_hits_what_another_published_meanwhile():
    manager = BlockManager(16, 4)
    first, second = alive(range(16)), alive(range(16))
    reserve(manager, first, budget=4)
    reserve(manager, second, budget=4)
    assert second.table[0] == first.table[0]
    reserve(manager, first)
    assert reserve(manager, second) == Grant(start=15, count=1, store_from=16, num_hits=2, num_new=0)


def test_decoded_duplicates_merge_at_commit():
    manager = BlockManager(16, 4)
    first, second = alive(range(5)), alive(range(5))
    reserve(manager, first)
    reserve(manager, second)
    for token in range(5, 8):
        decode(manager, first, token)
    for token in range(5, 8):
        decode(manager, second, token)
    assert first.table == second.table
    assert manager.num_blocks - manager.num_free == 2


def test_a_table_keeps_its_block_while_its_plan_is_being_built():
    manager = BlockManager(16, 4)
    first, second = alive(range(8)), alive(range(8))
    for seq in (first, second):  # in the middle of the first block, so neither can hit the other's
        reserve(manager, seq, budget=3)
    reserve(manager, first)
    own = list(second.table)
    reserve(manager, second)
    assert second.table[: len(own)] == own, "its row still writes this block"
    publish(manager, second)
    assert second.table == first.table


def test_salts_do_not_share():
    manager = BlockManager(16, 4)
    reserve(manager, alive(range(8), salt="a"))
    assert reserve(manager, alive(range(8), salt="b")).num_hits == 0
    assert reserve(manager, alive(range(8))).num_hits == 0
    assert reserve(manager, alive(range(8), salt="a")).num_hits == 2


def test_a_salt_is_verified_even_if_its_key_collides():
    manager = BlockManager(16, 4, hash_function=lambda content, parent: 7)
    reserve(manager, alive(range(4), salt="a"))
    assert reserve(manager, alive(range(4), salt="b")).num_hits == 0


def test_a_colliding_key_is_a_miss_and_leaves_the_first_block_whole():
    manager = BlockManager(16, 4, hash_function=lambda content, parent: len(content))
    first, second = alive(range(8)), alive(range(50, 58))
    reserve(manager, first)
    assert reserve(manager, second).num_hits == 0
    publish(manager, second)
    assert manager.contents[first.table[0]] == array("i", range(4)).tobytes()
    assert second.blocks.num_published == 0
    assert second.blocks.is_stuck
    assert set(first.table).isdisjoint(second.table)


def test_a_block_handed_out_again_is_a_miss():
    manager = BlockManager(2, 4)
    first = alive(range(8))
    reserve(manager, first)
    release(manager, first)
    other = alive(range(50, 58))
    reserve(manager, other)
    release(manager, other)
    assert count_hits(manager, range(8)) == 0
    assert count_hits(manager, range(50, 58)) == 8


def test_a_child_whose_parent_was_computed_anew_is_replaced():
    """The parent is gone and comes back in another block: the old child must neither hit nor stand in the way."""
    manager = BlockManager(5, 4)
    first, others = alive(range(12)), [alive([55]), alive([66])]
    for sequence in (first, *others):
        reserve(manager, sequence)
    head, old_child, _ = first.table
    release(manager, first)
    manager._named.move_to_end(head, last=False)  # evict the head before its tail, which the usual order avoids
    assert reserve(manager, alive([77])).num_new == 1
    assert ALIVE[-1].table == [head]
    for sequence in others:
        release(manager, sequence)

    again = alive(range(12))
    assert reserve(manager, again).num_hits == 0
    assert old_child not in again.table
    assert again.blocks.num_published == 3, "its own blocks are published, the unreachable ones are not in the way"
    assert manager.keys[old_child] is None


def test_eviction_takes_unpublished_blocks_first_then_the_oldest_with_tails_before_heads():
    manager = BlockManager(6, 4)
    old, new, partial = alive(range(8)), alive(range(20, 28)), alive([1, 2])
    for seq in (old, new, partial):
        reserve(manager, seq)
    (old_head, old_tail), (new_head, new_tail), (unpublished,) = old.table, new.table, partial.table
    for seq in (old, new, partial):
        release(manager, seq)
    never_used = ({*range(6)} - {old_head, old_tail, new_head, new_tail, unpublished}).pop()
    taker = alive(range(40, 64))
    reserve(manager, taker)
    assert taker.table == [unpublished, never_used, old_tail, old_head, new_tail, new_head]


def test_a_freed_prefix_is_hit_and_taken_out_of_the_free_blocks():
    manager = BlockManager(4, 4)
    first = alive(range(10))
    reserve(manager, first)
    release(manager, first)
    again = alive(range(10))
    assert reserve(manager, again) == Grant(start=8, count=2, store_from=8, num_hits=2, num_new=1)


def test_keys_depend_on_content_parent_and_order():
    a, b = array("i", [1, 2]).tobytes(), array("i", [2, 1]).tobytes()
    assert len({hash_block(a, 0), hash_block(b, 0), hash_block(a, 1), hash_block(a, hash_block(b, 0))}) == 4
