"""The scheduler dies, is restarted or sleeps, and its journal's disk fails."""

from random import Random

from scheduler_svc.core.requests.group_commit import RETRY_AFTER_S
from tests.sim.faults.scene import Scene, moment


def kill_scheduler(scene: Scene, rng: Random) -> bool:
    """kill -9; it is back soon."""
    scene.service.kill()
    scene.world.at(moment(scene, rng, 0.01, 1.0), scene.service.start)
    return True


def stop_scheduler(scene: Scene, rng: Random) -> bool:
    """SIGTERM; it is back soon."""
    scene.service.stop()
    scene.world.at(moment(scene, rng, 0.01, 1.0), scene.service.start)
    return True


def freeze_scheduler(scene: Scene, rng: Random) -> bool:
    """SIGSTOP, for less or more time than executors wait."""
    scene.service.freeze(moment(scene, rng, 0.1, 3.0))
    return True


def disk_full(scene: Scene, rng: Random) -> bool:
    """The journal cannot be written."""
    if scene.disk is not None:
        scene.disk.fill_up(moment(scene, rng, 0.05, 6.0))
    return scene.disk is not None


def disk_stuck(scene: Scene, rng: Random) -> bool:
    """The journal's writes do not return."""
    if scene.disk is not None:
        scene.disk.stick(moment(scene, rng, 0.05, 6.0))
    return scene.disk is not None


def kill_when_journal_recovers(scene: Scene, rng: Random) -> bool:
    """kill -9 just when the journal can be written again, and clients come meanwhile."""
    if scene.disk is not None:
        for _ in range(4):
            scene.world.at(moment(scene, rng, RETRY_AFTER_S, RETRY_AFTER_S + 0.35), scene.add_client)
        scene.disk.fill_up(moment(scene, rng, 0.05, 0.3))
        scene.service.kill_when("journal works again")
    return scene.disk is not None


KINDS = (kill_scheduler, stop_scheduler, freeze_scheduler, disk_full, disk_stuck, kill_when_journal_recovers)
