"""Keepers die, stand still and lose connections; processes die with pools in their hands, and pools are not what they
were.
"""

from collections.abc import Callable
from random import Random

from tests.sim.executors import Ending, ExecutorProcess
from tests.sim.faults.executors import fate
from tests.sim.faults.scene import Scene, moment, to_an_executor
from tests.sim.keepers import KeeperHost
from tests.sim.steps import Fate

ENDINGS = (Ending.LEASED, Ending.WELCOMED, Ending.TAGGED)


def to_a_keeper(scene: Scene, rng: Random, do: Callable[[KeeperHost], object]) -> bool:
    """Do it to a keeper, if there is one."""
    if scene.keepers:
        do(rng.choice(scene.keepers))
    return bool(scene.keepers)


def to_a_holder(scene: Scene, rng: Random, do: Callable[[ExecutorProcess], object]) -> bool:
    """Do it to an executor that holds a pool, if there is one."""
    holders = [process for process in scene.rack.alive if process.memory is not None]
    if holders:
        do(rng.choice(holders))
    return bool(holders)


def kill_keeper(scene: Scene, rng: Random) -> bool:
    """kill -9; it is back soon."""

    def do(host: KeeperHost) -> None:
        host.kill()
        scene.world.at(moment(scene, rng, 0.01, 1.5), host.start)

    return to_a_keeper(scene, rng, do)


def kill_keeper_and_holder(scene: Scene, rng: Random) -> bool:
    """kill -9 of both, at nearly the same time: nobody has the pool any more."""
    kill_keeper(scene, rng)
    later_s = rng.choice([0.0, 0.0, 0.3])
    return to_a_holder(scene, rng, lambda process: scene.world.after(later_s, process.kill))


def freeze_keeper(scene: Scene, rng: Random) -> bool:
    """SIGSTOP, for less or more time than it takes to be noticed."""
    return to_a_keeper(scene, rng, lambda host: host.freeze(moment(scene, rng, 0.1, 3.0)))


def reset_link(scene: Scene, rng: Random) -> bool:
    """The connection of an executor or a standby to its keeper breaks."""
    return bool(scene.keepers) and to_an_executor(scene, rng, ExecutorProcess.reset_link)


def drop_pools(scene: Scene, rng: Random) -> bool:
    """`baton keeper drop`; perhaps just when an executor has died."""
    if scene.keepers and rng.random() < 0.5:
        to_a_holder(scene, rng, ExecutorProcess.kill)
    return to_a_keeper(scene, rng, lambda host: scene.world.after(rng.uniform(0.0, 0.01), host.drop_unused))


def zombie(scene: Scene, rng: Random) -> bool:
    """SIGSTOP of a process that holds a pool, for less or more time than it takes to be killed for its standby. Its
    connection to the keeper may break meanwhile."""
    breaks = rng.random() < 0.5

    def do(process: ExecutorProcess) -> None:
        process.freeze(moment(scene, rng, 0.5, 6.0))
        if breaks:
            scene.world.at(moment(scene, rng, 0.0, 0.5), process.reset_link)

    return to_a_holder(scene, rng, do)


def lose_lease(scene: Scene, rng: Random) -> bool:
    """An executor dies, and so do its next holders of pools, at moments at which little has been said about them."""

    def do(process: ExecutorProcess) -> None:
        scene.rack.endings.extend(rng.choices(ENDINGS, k=rng.randint(1, 3)))
        process.kill()

    return to_a_holder(scene, rng, do)


def compute_elsewhere(scene: Scene, rng: Random) -> bool:
    """An executor dies, and another scheduler gets its successor for a moment."""

    def do(process: ExecutorProcess) -> None:
        scene.rack.endings.append(Ending.ELSEWHERE)
        process.kill()

    return to_a_holder(scene, rng, do)


def swap_again(scene: Scene, rng: Random) -> bool:
    """One holder of pools after the other dies, some of them before their first answer."""
    for _ in range(rng.randint(2, 5)):
        scene.world.at(moment(scene, rng, 0.0, 0.6), to_a_holder, scene, rng, ExecutorProcess.kill)
    return bool(scene.keepers)


def fail_and_end(scene: Scene, rng: Random) -> bool:
    """A step fails, and the process with it: the scheduler may never hear of the failed step."""
    return fate(scene, rng, Fate.FATAL)


def mistake_kind(scene: Scene, rng: Random) -> bool:
    """An executor is replaced by one of another model or size, and that one takes the pool for one of its kind."""

    def do(process: ExecutorProcess) -> None:
        slot = scene.rack.slot(process)
        builds = [build for build in scene.builds if build.is_large or not slot.must_be_large]
        slot.kept_as, slot.build = slot.build, rng.choice(builds)
        process.kill()

    return to_a_holder(scene, rng, do)


KINDS = (
    *(kill_keeper, kill_keeper_and_holder, freeze_keeper, reset_link, drop_pools),
    *(zombie, lose_lease, compute_elsewhere, swap_again, fail_and_end, mistake_kind),
)
