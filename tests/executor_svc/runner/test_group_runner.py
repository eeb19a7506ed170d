"""Whose process each rank watches. `tests/executor_svc/service/test_group.py` runs ranks as processes."""

from executor_svc.runner.group_runner import leader_pid


def test_a_rank_watches_the_leader_only_where_its_process_has_that_number():
    places = [[7, 1], [8, 1], [9, 2], [7, 2]]
    assert [leader_pid(places, rank) for rank in range(1, 4)] == [7, None, None]
