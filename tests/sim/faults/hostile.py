"""Executors that are not sound, and strangers: whatever they say has to be harmless."""

from random import Random

from common import messages as m
from tests.sim.executors import ExecutorProcess
from tests.sim.faults.executors import fate
from tests.sim.faults.scene import Scene, to_an_executor
from tests.sim.models import VOCAB_SIZE
from tests.sim.sockets import Dealer
from tests.sim.steps import Fate


def repeated_answer(scene: Scene, rng: Random) -> bool:
    """A step is answered twice."""
    return fate(scene, rng, Fate.REPEATED)


def garbled_answer(scene: Scene, rng: Random) -> bool:
    """An answer has too many tokens."""
    return fate(scene, rng, Fate.GARBLED)


def answer_to_nothing(scene: Scene, rng: Random) -> bool:
    """An answer is to a step that was not sent."""
    return fate(scene, rng, Fate.ANOTHER)


def failure_of_nothing(scene: Scene, rng: Random) -> bool:
    """A step fails that was not sent."""
    step = rng.randrange(5)
    return to_an_executor(
        scene, rng, lambda executor: executor.say(m.StepFailed(epoch=executor.epoch or 1, step=step, error="nonsense"))
    )


def second_hello(scene: Scene, rng: Random) -> bool:
    """An executor says Hello in the middle of its epoch."""
    return to_an_executor(scene, rng, lambda executor: executor.say(executor.hello))


def old_words(scene: Scene, rng: Random) -> bool:
    """An executor speaks of an epoch that is over, or never was."""
    away = rng.choice([-1, 1, 1000])
    return to_an_executor(scene, rng, lambda executor: executor.say(_nonsense(rng, executor, away)))


def stranger(scene: Scene, rng: Random) -> bool:
    """A peer that never said Hello speaks for all executors."""
    dealer = Dealer(scene.executor_port, m.SchedulerToExecutor, lambda message: None)

    def speak() -> None:
        for executor in scene.rack.alive:
            dealer.send(_nonsense(rng, executor))

    scene.world.after(0.1, speak)
    scene.world.after(0.2, dealer.close)
    return True


def odd_vocabulary(scene: Scene, rng: Random) -> bool:
    """An executor comes whose tokens no client could read, and has to be rejected."""

    def do(executor: ExecutorProcess) -> None:
        facts = {name: getattr(executor.hello, name) for name in executor.hello.__struct_fields__}
        odd = m.Hello(**(facts | {"vocab_size": VOCAB_SIZE + 1, "executor": "odd"}))
        dealer = Dealer(scene.executor_port, m.SchedulerToExecutor, lambda message: None)
        scene.world.after(0.05, dealer.send, odd)
        scene.world.after(0.3, dealer.close)

    return to_an_executor(scene, rng, do)


def _nonsense(rng: Random, executor: ExecutorProcess, away: int = 0) -> m.ExecutorToScheduler:
    """Something that the executor might say if it were in an epoch that is so many away."""
    epoch, step = (executor.epoch or 2) + away, executor.thread.step
    words: list[m.ExecutorToScheduler] = [
        m.ExecutorHeartbeat(epoch=epoch),
        m.StepResult(epoch=epoch, step=step, token_ids=b"\1\0\0\0", compute_us=1),
        m.StepFailed(epoch=epoch, step=step, error="nonsense"),
        m.Leaving(epoch=epoch),
    ]
    return rng.choice(words)


KINDS = (
    *(repeated_answer, garbled_answer, answer_to_nothing, failure_of_nothing),
    *(second_hello, old_words, stranger, odd_vocabulary),
)
