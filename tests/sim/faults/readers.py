"""Clients come in crowds, go, come back and change their mind; frontends die, freeze and read slowly."""

from collections.abc import Callable
from functools import partial
from random import Random

from common import messages as m
from tests.sim.clients import Client, State
from tests.sim.faults.scene import Scene, moment


def to_a_client(scene: Scene, rng: Random, do: Callable[[Client], object]) -> bool:
    """Do it to a client that reads, or is about to, if there is one."""
    reading = [client for client in scene.clients if client.state in (State.READING, State.WAITING)]
    if reading:
        do(rng.choice(reading))
    return bool(reading)


def hang_up(scene: Scene, rng: Random) -> bool:
    """A client's connection breaks, for less or more time than its request is kept."""
    return to_a_client(scene, rng, lambda client: client.hang_up(rng.choice([0.01, 0.1, 1.0, 4.0])))


def move(scene: Scene, rng: Random) -> bool:
    """A client reads on at another frontend, and back again perhaps."""
    says_so, returns = rng.random() < 0.5, rng.random() < 0.3

    def do(client: Client) -> None:
        client.move(says_so=says_so)
        if returns:
            scene.world.after(rng.uniform(0.0, 0.003), lambda: client.move(says_so=says_so))

    return to_a_client(scene, rng, do)


def quit_(scene: Scene, rng: Random) -> bool:
    """A client goes and does not come back."""
    return to_a_client(scene, rng, lambda client: client.quit(says_so=rng.random() < 0.5))


def cancel(scene: Scene, rng: Random) -> bool:
    """A client does not want a sequence, or all of them, any more."""
    return to_a_client(scene, rng, lambda client: client.cancel(rng.randint(-1, client.submit.n - 1)))


def twin(scene: Scene, rng: Random) -> bool:
    """A client submits a request id that is in use."""
    return to_a_client(scene, rng, scene.call_twin)


def attach_unknown(scene: Scene, rng: Random) -> bool:
    """A client attaches to a request that never was."""
    scene.call_unknown()
    return True


def revoke(scene: Scene, rng: Random) -> bool:
    """The key of a client is revoked: several frontends say so, one after the other."""
    up = [frontend for frontend in scene.frontends if frontend.is_up]
    names = sorted({client.submit.client for client in scene.clients if client.submit.client and not client.is_settled})
    if not up or not names:
        return False
    name = rng.choice(names)
    for frontend in rng.sample(up, rng.randint(1, len(up))):
        scene.world.after(rng.uniform(0.0, 0.1), frontend.tell, m.Revoke(client=name))
    return True


def flood(scene: Scene, rng: Random) -> bool:
    """Many clients come at once."""
    for _ in range(rng.randint(6, 14)):
        scene.add_client()
    return True


def never_return(scene: Scene, rng: Random) -> bool:
    """The scheduler is killed, and while it is down clients go for ever; some ask again when it is back."""
    scene.service.kill()
    scene.world.at(moment(scene, rng, 0.05, 1.0), scene.service.start)
    gone = [client for client in scene.clients if not client.is_settled and rng.random() < 0.7]
    for client in gone:
        scene.world.after(rng.uniform(0.0, 0.05), partial(client.quit, says_so=False))
        if rng.random() < 0.5:
            scene.world.after(rng.uniform(0.05, 1.5), scene.ask_again, client)
    return bool(gone)


def kill_frontend(scene: Scene, rng: Random) -> bool:
    """kill -9; another takes its place."""
    if scene.frontends:
        scene.restart_frontend(rng.choice(scene.frontends))
    return bool(scene.frontends)


def delay_frontend(scene: Scene, rng: Random) -> bool:
    """kill -9, and the machine has no file or process left to start another for a while."""
    if scene.frontends:
        scene.restart_frontend(rng.choice(scene.frontends), after_s=rng.choice([1.5, 6.0, 20.0]))
    return bool(scene.frontends)


def freeze_frontend(scene: Scene, rng: Random) -> bool:
    """SIGSTOP, for less or more time than it takes to be thought silent, or to hang."""
    if scene.frontends:
        rng.choice(scene.frontends).freeze(scene.world.now + rng.choice([0.3, 2.0, 12.0, 35.0]))
    return bool(scene.frontends)


def slow_reader(scene: Scene, rng: Random) -> bool:
    """A frontend reads nothing for a while."""
    if scene.frontends:
        rng.choice(scene.frontends).read_slowly(moment(scene, rng, 0.1, 2.0))
    return bool(scene.frontends)


def reset_frontend(scene: Scene, rng: Random) -> bool:
    """The connection between a frontend and the core breaks."""
    if scene.frontends:
        rng.choice(scene.frontends).reset()
    return bool(scene.frontends)


KINDS = (
    *(hang_up, move, quit_, cancel, twin, attach_unknown, revoke, flood, never_return),
    *(kill_frontend, delay_frontend, freeze_frontend, slow_reader, reset_frontend),
)
