"""Executors die, hang, fail, lose their connection, leave, and are replaced by others."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from common import messages as m
from tests.sim.executors import ExecutorProcess
from tests.sim.faults.scene import Scene, moment, to_an_executor
from tests.sim.models import LIBRARIES, Build, capacity
from tests.sim.steps import Fate

FATE_S = 0.5  # after which a fault of a step has not happened


def fate(scene: Scene, rng: Random, *fates: Fate) -> bool:
    """What becomes of an executor's next steps, if they come soon."""

    def do(executor: ExecutorProcess) -> None:
        executor.thread.fates.extend(fates)
        scene.world.after(FATE_S, executor.thread.fates.clear)

    return to_an_executor(scene, rng, do)


def kill(scene: Scene, rng: Random) -> bool:
    """kill -9; it is back soon."""
    return to_an_executor(scene, rng, ExecutorProcess.kill)


def kill_and_leave_down(scene: Scene, rng: Random) -> bool:
    """kill -9; it is back after a while."""

    def do(executor: ExecutorProcess) -> None:
        scene.rack.slot(executor).down_until = moment(scene, rng, 1.0, 3.0)
        executor.kill()

    return to_an_executor(scene, rng, do)


def freeze(scene: Scene, rng: Random) -> bool:
    """SIGSTOP, for less or more time than it takes to be lost."""
    return to_an_executor(scene, rng, lambda executor: executor.freeze(moment(scene, rng, 0.2, 3.5)))


def hang(scene: Scene, rng: Random) -> bool:
    """A step never ends."""
    return fate(scene, rng, Fate.HANGS)


def late_step(scene: Scene, rng: Random) -> bool:
    """A step ends when its executor has been given up, or nearly."""
    return fate(scene, rng, Fate.LATE)


def step_failure(scene: Scene, rng: Random) -> bool:
    """A step fails, or several in a row."""
    return fate(scene, rng, *[Fate.FAILS] * rng.choice([1, 1, 1, 2]))


def one_step_failure(scene: Scene, rng: Random) -> bool:
    """A step fails."""
    return fate(scene, rng, Fate.FAILS)


def broken_gpu(scene: Scene, rng: Random) -> bool:
    """Every step fails, until an operator replaces the machine."""

    def do(executor: ExecutorProcess) -> None:
        executor.thread.is_broken = True
        scene.world.at(moment(scene, rng, 0.3, 3.0), executor.kill)

    return to_an_executor(scene, rng, do)


def numberless_step(scene: Scene, rng: Random) -> bool:
    """A bit flips: the scores of a step are no numbers."""
    return fate(scene, rng, Fate.NUMBERLESS)


def late_masks(scene: Scene, rng: Random) -> bool:
    """Masks are late, in one step or in several."""
    return fate(scene, rng, *[Fate.UNMASKED] * rng.choice([1, 1, 2, 5]))


def computes_no_numbers(scene: Scene, rng: Random) -> bool:
    """No step gives numbers, until an operator replaces the machine."""

    def do(executor: ExecutorProcess) -> None:
        executor.thread.is_numberless = True
        scene.world.at(moment(scene, rng, 0.3, 3.0), executor.kill)

    return to_an_executor(scene, rng, do)


def reset(scene: Scene, rng: Random) -> bool:
    """The connection breaks."""
    return to_an_executor(scene, rng, ExecutorProcess.reset)


def half_open(scene: Scene, rng: Random) -> bool:
    """The connection is dead, and neither end notices for a while."""
    return to_an_executor(scene, rng, lambda executor: executor.half_open(moment(scene, rng, 1.0, 6.0)))


def cut_both(scene: Scene, rng: Random) -> bool:
    """Nothing comes through, and then everything does."""
    return to_an_executor(scene, rng, lambda executor: executor.cut(moment(scene, rng, 0.1, 4.0)))


def cut_up(scene: Scene, rng: Random) -> bool:
    """The scheduler does not hear an executor."""
    return to_an_executor(scene, rng, lambda executor: executor.cut(moment(scene, rng, 0.1, 4.0), down=False))


def cut_down(scene: Scene, rng: Random) -> bool:
    """An executor does not hear the scheduler."""
    return to_an_executor(scene, rng, lambda executor: executor.cut(moment(scene, rng, 0.1, 4.0), up=False))


def sigterm(scene: Scene, rng: Random) -> bool:
    """A process is told to end."""
    return to_an_executor(scene, rng, ExecutorProcess.terminate)


def drain(scene: Scene, rng: Random, *, finish: bool = False) -> bool:
    """`baton drain`, by name or by epoch."""
    up = [frontend for frontend in scene.frontends if frontend.is_up]
    if not up:
        return False
    by_epoch = rng.random() < 0.5

    def do(executor: ExecutorProcess) -> None:
        name = str(executor.epoch) if by_epoch and executor.epoch is not None else executor.name
        rng.choice(up).ask(m.DrainExecutor, executor=name, finish=finish)

    return to_an_executor(scene, rng, do)


def drain_finish(scene: Scene, rng: Random) -> bool:
    """`baton drain --finish`."""
    return drain(scene, rng, finish=True)


def upgrade(scene: Scene, rng: Random) -> bool:
    """An executor is replaced by one with other weights, another dtype or another pool."""
    return to_an_executor(scene, rng, lambda executor: _replace(scene, rng, executor))


def upgrade_all(scene: Scene, rng: Random) -> bool:
    """All executors are replaced, one by one."""
    for i, executor in enumerate(scene.rack.alive):
        scene.world.after(0.3 * i, _replace, scene, rng, executor)
    return bool(scene.rack.alive)


def upgrade_library(scene: Scene, rng: Random) -> bool:
    """All executors are replaced, one by one, by the same with another library."""
    library = rng.choice(LIBRARIES)
    for i, executor in enumerate(scene.rack.alive):
        build = replace(scene.rack.slot(executor).build, library=library)
        scene.world.after(0.3 * i, _replace_by, scene, executor, build)
    return bool(scene.rack.alive)


def lose_largest(scene: Scene, rng: Random) -> bool:
    """The largest executor dies, and stays away for less or more time than requests wait for it."""
    return _take_largest(scene, rng, ExecutorProcess.kill)


def drain_largest(scene: Scene, rng: Random) -> bool:
    """The largest executor is told to leave, and stays away."""
    return _take_largest(scene, rng, ExecutorProcess.terminate)


def finish_largest(scene: Scene, rng: Random) -> bool:
    """The largest executor leaves when its sequences have ended, and stays away."""
    up = [frontend for frontend in scene.frontends if frontend.is_up]

    def do(executor: ExecutorProcess) -> None:
        rng.choice(up).ask(m.DrainExecutor, executor=executor.name, finish=True)

    return bool(up) and _take_largest(scene, rng, do)


def _take_largest(scene: Scene, rng: Random, do: Callable[[ExecutorProcess], object]) -> bool:
    """Do it to the largest executor; meanwhile clients come."""
    alive = scene.rack.alive
    if alive:
        largest = max(alive, key=lambda executor: capacity(executor.build.limits))
        scene.rack.slot(largest).down_until = moment(scene, rng, 0.5, 4.5)
        do(largest)
        for _ in range(rng.randint(0, 3)):
            scene.world.at(moment(scene, rng, 0.0, 3.0), scene.add_client)
    return bool(alive)


def _replace(scene: Scene, rng: Random, executor: ExecutorProcess) -> None:
    if executor.is_alive:
        slot = scene.rack.slot(executor)
        builds = [build for build in scene.builds if build.is_large or not slot.must_be_large]
        _replace_by(scene, executor, rng.choice(builds))


def _replace_by(scene: Scene, executor: ExecutorProcess, build: Build) -> None:
    if executor.is_alive:
        scene.rack.slot(executor).build = build
        executor.terminate()


KINDS = (
    *(kill, kill_and_leave_down, freeze, hang, late_step, step_failure, one_step_failure, broken_gpu),
    *(numberless_step, computes_no_numbers, late_masks),
    *(lose_largest, drain_largest, finish_largest),
    *(reset, half_open, cut_both, cut_up, cut_down, sigterm, drain, drain_finish, upgrade, upgrade_all),
    upgrade_library,
)
