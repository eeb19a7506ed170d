"""The scheduler dies, is restarted or sleeps, and its journal's disk fails."""

from collections.abc import Callable
from random import Random

from scheduler_svc.core.requests.group_commit import RETRY_AFTER_S
from scheduler_svc.core.requests.recovery import RESUME_WITHIN_S
from tests.sim.disk import Disk
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


def kill_while_journal_is_begun(scene: Scene, rng: Random) -> bool:
    """kill -9, and again between two pieces of the journal that the next life begins."""
    if scene.disk is not None:
        scene.service.kill_when("requests restored from the journal", within_s=0.04)
    return scene.disk is not None and kill_scheduler(scene, rng)


def kill_while_journal_is_replaced(scene: Scene, rng: Random) -> bool:
    """kill -9 about when the journal can be written again, and is begun anew; clients come before."""
    if scene.disk is not None:
        for _ in range(4):
            scene.world.at(moment(scene, rng, 0.0, RETRY_AFTER_S), scene.add_client)
        scene.disk.fill_up(moment(scene, rng, 0.05, 0.3))
        scene.world.at(moment(scene, rng, RETRY_AFTER_S, RETRY_AFTER_S + 0.35), kill_scheduler, scene, rng)
    return scene.disk is not None


def journal_vanishes(scene: Scene, rng: Random) -> bool:
    """The journal's file is deleted while it is written to."""
    if scene.disk is not None:
        scene.disk.vanish()
    return scene.disk is not None


def journal_cut(scene: Scene, rng: Random) -> bool:
    """The journal's file is truncated while it is written to."""
    if scene.disk is not None:
        scene.disk.cut()
    return scene.disk is not None


def kill_after_loss(scene: Scene, rng: Random) -> bool:
    """The journal's file is deleted, and kill -9 comes just when the scheduler has a new one."""
    if scene.disk is not None:
        for _ in range(2):
            scene.world.at(moment(scene, rng, 0.0, 0.5), scene.add_client)
        scene.disk.vanish()
        scene.service.kill_when("journal works again")
    return scene.disk is not None


def restart_with_flip(scene: Scene, rng: Random) -> bool:
    """kill -9, and a byte of the journal is another one when the scheduler is back."""
    return _while_down(scene, rng, lambda disk: disk.flip())


def restart_with_cut(scene: Scene, rng: Random) -> bool:
    """kill -9, and the end of the journal is missing when the scheduler is back."""
    return _while_down(scene, rng, lambda disk: disk.cut())


def restart_without_journal(scene: Scene, rng: Random) -> bool:
    """kill -9, and the journal is gone when the scheduler is back."""
    return _while_down(scene, rng, lambda disk: disk.vanish())


def restart_with_copy(scene: Scene, rng: Random) -> bool:
    """The journal is copied, and somewhat later the scheduler is killed and the copy takes the journal's place.

    Not if a clock was set meanwhile, or the machine started anew: together these would hide how old the copy is.
    """
    disk, machine = scene.disk, scene.machine
    if disk is None:
        return False
    disk.copy()
    before = (machine.num_boots, machine.num_settings)

    def do(disk: Disk) -> None:
        if (machine.num_boots, machine.num_settings) == before:
            disk.put_back()

    scene.world.at(moment(scene, rng, 0.0, 0.8), _while_down, scene, rng, do)
    return True


def clock_jumps(scene: Scene, rng: Random) -> bool:
    """kill -9, and the wall's clock is set, to any time, before the scheduler is back."""
    by_s = rng.choice([-1e8, -3600.0, -1.0, 30.0, 3600.0, 1e8])
    return _while_down(scene, rng, lambda disk: scene.machine.set_wall(by_s))


def reboot(scene: Scene, rng: Random) -> bool:
    """The scheduler's machine is started anew; the wall's clock may not be set yet."""

    def do(disk: Disk) -> None:
        scene.machine.reboot()
        scene.machine.set_wall(rng.choice([0.0, 0.0, -1e8]))

    return _while_down(scene, rng, do)


def long_absence(scene: Scene, rng: Random) -> bool:
    """The scheduler is away for so long that its requests are not taken up; on another machine perhaps."""

    def do(disk: Disk) -> None:
        scene.machine.rest(RESUME_WITHIN_S * rng.uniform(1.1, 100.0))
        if rng.random() < 0.5:
            scene.machine.reboot()

    return _while_down(scene, rng, do)


def _while_down(scene: Scene, rng: Random, do: Callable[[Disk], None]) -> bool:
    """kill -9, if the scheduler lives and has a journal; do something, and let it start."""
    if scene.disk is None or scene.service.core is None:
        return False
    scene.service.kill()
    do(scene.disk)
    scene.world.at(moment(scene, rng, 0.01, 1.0), scene.service.start)
    return True


KINDS = (
    *(kill_scheduler, stop_scheduler, freeze_scheduler, disk_full, disk_stuck, kill_when_journal_recovers),
    *(kill_while_journal_is_begun, kill_while_journal_is_replaced),
    *(journal_vanishes, journal_cut, kill_after_loss, restart_with_flip, restart_with_cut, restart_without_journal),
    *(restart_with_copy, clock_jumps, reboot, long_absence),
)
