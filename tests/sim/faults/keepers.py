"""The keeper dies, and stands still."""

from random import Random

from tests.sim.faults.scene import Scene, moment


def kill_keeper(scene: Scene, rng: Random) -> bool:
    """kill -9; it is back soon."""
    if scene.keeper is not None:
        scene.keeper.kill()
        scene.world.at(moment(scene, rng, 0.01, 1.5), scene.keeper.start)
    return scene.keeper is not None


def freeze_keeper(scene: Scene, rng: Random) -> bool:
    """SIGSTOP, for less or more time than it takes to be noticed."""
    if scene.keeper is not None:
        scene.keeper.freeze(moment(scene, rng, 0.1, 3.0))
    return scene.keeper is not None


KINDS = (kill_keeper, freeze_keeper)
