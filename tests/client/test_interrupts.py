"""Ctrl-C in a block that is done as a whole."""

import signal
import threading

import pytest

from scheduler_svc.client.interrupts import held_interrupts


def interrupted(times: int) -> list[str]:
    """What is done in a block in whose middle Ctrl-C comes."""
    done = []
    try:
        with held_interrupts():
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
            done.append("the rest")
    except KeyboardInterrupt:
        done.append("the interrupt")
    return done


@pytest.mark.parametrize(
    ("times", "done"), [(0, ["the rest"]), (1, ["the rest", "the interrupt"]), (2, ["the interrupt"])]
)
def test_one_counts_at_the_end_and_a_second_one_at_once(times, done):
    assert interrupted(times) == done
    with pytest.raises(KeyboardInterrupt):  # as ever, behind the block
        signal.raise_signal(signal.SIGINT)


def test_a_failure_is_not_hidden():
    with pytest.raises(ValueError, match="no"), held_interrupts():
        raise ValueError("no")


def test_where_it_is_ignored_it_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_interrupts():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_changed():
    found = []

    def run():
        with held_interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
