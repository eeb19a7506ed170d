"""Mixes of faults. Each kind of fault has a weight; `tests/sim/faults` says what the kinds do."""

from dataclasses import dataclass, field, replace

from scheduler_svc.core.executor.capacity import POOL_GRACE_S

SHORT_POOL_GRACE_S = 1.53  # no whole number of ticks, so that rounding decides nothing
KILLS = {"kill": 4.0, "kill_and_leave_down": 1.0, "reset": 2.0, "half_open": 1.0, "freeze": 1.0}
HANGS = {"hang": 3.0, "late_step": 3.0, "freeze": 2.0, "step_failure": 3.0, "broken_gpu": 1.0}
NUMBERLESS = {"numberless_step": 4.0, "computes_no_numbers": 3.0}
MASKS = {"late_masks": 6.0}
NETWORK = {"cut_both": 2.0, "cut_up": 1.0, "cut_down": 1.0, "half_open": 1.0, "reset": 1.0}
DRAINS = {"sigterm": 3.0, "drain": 3.0, "drain_finish": 3.0, "kill": 1.0}
UPGRADES = {"upgrade": 4.0, "upgrade_all": 2.0, "sigterm": 1.0, "drain_finish": 1.0, "kill": 1.0}
POOLS = {"lose_largest": 4.0, "drain_largest": 2.0, "finish_largest": 2.0}
LIBRARIES = {"upgrade_library": 4.0, "upgrade": 2.0, "upgrade_all": 1.0}
CLIENTS = {"hang_up": 4.0, "move": 3.0, "quit": 3.0, "cancel": 4.0, "twin": 2.0, "attach_unknown": 1.0}
FRONTENDS = {
    "kill_frontend": 3.0,
    "delay_frontend": 1.5,
    "freeze_frontend": 2.0,
    "slow_reader": 3.0,
    "reset_frontend": 2.0,
}
DISK = {"disk_full": 2.0, "disk_stuck": 2.0, "kill_when_journal_recovers": 1.0}
JOURNAL = {
    "journal_vanishes": 2.0,
    "journal_cut": 1.0,
    "kill_after_loss": 2.0,
    "restart_with_flip": 2.0,
    "restart_with_cut": 1.0,
    "restart_without_journal": 1.0,
    "restart_with_copy": 2.0,
    "clock_jumps": 2.0,
    "reboot": 1.0,
    "long_absence": 1.0,
}
RESTARTS = {
    "kill_while_journal_is_begun": 6.0,
    "kill_while_journal_is_replaced": 6.0,
    "kill_when_journal_recovers": 2.0,
    "kill_scheduler": 1.0,
}
SCHEDULER = {"kill_scheduler": 4.0, "stop_scheduler": 1.0, "freeze_scheduler": 1.0, "never_return": 2.0}
HOSTILE = {
    "stranger": 4.0,
    "odd_vocabulary": 1.0,
    "repeated_answer": 2.0,
    "garbled_answer": 2.0,
    "answer_to_nothing": 2.0,
    "failure_of_nothing": 2.0,
    "second_hello": 1.0,
    "old_words": 2.0,
}
SWAPS = {"zombie": 4.0, "lose_lease": 3.0, "swap_again": 4.0, "reset_link": 1.0, "freeze_keeper": 1.0}
KEEPERS = {
    **SWAPS,
    "kill_keeper": 3.0,
    "kill_keeper_and_holder": 2.0,
    "drop_pools": 2.0,
    "compute_elsewhere": 3.0,
    "fail_and_end": 3.0,
    "mistake_kind": 4.0,
}
EVERYTHING = {
    **KILLS,
    **HANGS,
    **NUMBERLESS,
    **MASKS,
    **NETWORK,
    **DRAINS,
    **UPGRADES,
    **POOLS,
    **CLIENTS,
    **FRONTENDS,
    **DISK,
    **JOURNAL,
    **SCHEDULER,
    **HOSTILE,
    **dict.fromkeys(KEEPERS, 1.0),
}


@dataclass(frozen=True)
class Profile:
    """A mix.

    Attributes:
        faults: kinds, with their weights.
        num_faults: the fewest and the most in a run.
        spacing_s: the shortest time between two of them. With enough of it no innocent sequence can have a part in
            three failures in a row, and that is checked.
        journal: how many of the runs have one.
        executors, requests: the fewest and the most.
        max_waiting: sequences; few, to see requests refused.
        max_tokens: of an answer.
        step_s: what steps may take, in seconds; slow ones let faults strike in the middle of a sequence.
        budgets: tokens in a plan, at most.
        num_builds: of executors, which may differ in model and size.
        num_poisoned: requests that kill whatever computes them, at most.
        pools: how many of the runs have executors whose pools differ, down to what holds few prompts.
        libraries: how many of the runs have executors that mask tokens by different libraries, and more grammars.
        tasks: how many of the runs have executors of different tasks, and requests for pooled results.
        keeps: how many of the runs have a keeper on each machine.
        standbys: of an executor whose machine has one, the fewest and the most.
        is_roomy: every pool has room for all sequences of the run.
        pool_grace_s: how long sequences wait for an executor that fits.
    """

    faults: dict[str, float] = field(default_factory=dict)
    num_faults: tuple[int, int] = (1, 4)
    spacing_s: float = 0.0
    journal: float = 0.5
    executors: tuple[int, int] = (1, 3)
    requests: tuple[int, int] = (2, 6)
    max_waiting: int = 64
    max_tokens: int = 16
    step_s: tuple[float, ...] = (0.002, 0.01, 0.02, 0.08)
    budgets: tuple[int, ...] = (3, 8, 16, 64)
    num_builds: int = 1
    num_poisoned: int = 0
    pools: float = 0.0
    libraries: float = 0.0
    tasks: float = 0.0
    keeps: float = 0.0
    standbys: tuple[int, int] = (0, 1)
    is_roomy: bool = False
    pool_grace_s: float = POOL_GRACE_S

    @property
    def keeps_promptly(self) -> bool:
        """Whether the core hears of clients that go as soon as they do, and does not forget it."""
        return not any(kind in {**FRONTENDS, **SCHEDULER, **JOURNAL} for kind in self.faults)


# Few requests, on executors that differ in what they can run.
_FEW_THAT_DIFFER = Profile(
    num_faults=(1, 5),
    requests=(3, 9),
    max_tokens=30,
    step_s=(0.005, 0.02, 0.05),
    num_builds=4,
    pool_grace_s=SHORT_POOL_GRACE_S,
)
PROFILES = {
    "calm": Profile({**CLIENTS, "sigterm": 1.0}, num_faults=(0, 3), requests=(3, 9)),
    "kills": Profile({**KILLS, **NETWORK}, tasks=0.3),
    "spaced": Profile(
        {"kill": 3.0, "reset": 2.0, "one_step_failure": 3.0, "hang": 1.0},
        num_faults=(2, 5),
        spacing_s=2.5,
        max_tokens=60,
        step_s=(0.02, 0.06),
        budgets=(16, 64),
    ),
    "hangs": Profile({**HANGS}),
    "numberless": Profile({**NUMBERLESS, "kill": 1.0, "cancel": 1.0, "hang_up": 1.0}, executors=(1, 3), tasks=0.3),
    "masks": Profile(
        {**MASKS, "kill": 2.0, "sigterm": 1.0, "numberless_step": 1.0, "cancel": 1.0, "hang_up": 1.0},
        num_faults=(2, 6),
        max_tokens=60,
        step_s=(0.01, 0.02, 0.05),
    ),
    "drains": Profile({**DRAINS}, executors=(1, 3), tasks=0.3),
    "upgrades": Profile({**UPGRADES}, num_builds=3, executors=(2, 3)),
    "pools": replace(
        _FEW_THAT_DIFFER,
        faults={
            **POOLS,
            "upgrade": 1.0,
            "upgrade_all": 0.5,
            "kill": 1.0,
            "sigterm": 1.0,
            "drain_finish": 1.0,
            "late_step": 0.5,
            "kill_scheduler": 1.0,
            "freeze_scheduler": 1.0,
            "cancel": 1.0,
            "hang_up": 1.0,
            "reset": 0.5,
        },
        executors=(2, 3),
        pools=1.0,
    ),
    "grammars": replace(
        _FEW_THAT_DIFFER,
        faults={
            **LIBRARIES,
            "kill": 2.0,
            "kill_and_leave_down": 1.0,
            "sigterm": 1.0,
            "drain_finish": 1.0,
            "kill_scheduler": 1.0,
            "freeze_scheduler": 0.5,
            "cancel": 1.0,
            "hang_up": 1.0,
            "reset": 0.5,
        },
        executors=(1, 4),
        pools=0.3,
        libraries=1.0,
    ),
    "poison": Profile({**CLIENTS}, num_faults=(0, 1), num_poisoned=3, executors=(1, 3)),
    "frontends": Profile({**CLIENTS, **FRONTENDS}, num_faults=(2, 6)),
    "journal": Profile({**SCHEDULER, **DISK, "hang_up": 1.0, "kill": 1.0, "cancel": 1.0}, journal=0.9),
    "ghosts": Profile(
        {"never_return": 4.0, "kill_scheduler": 2.0, "kill": 1.0, "freeze_scheduler": 0.5},
        num_faults=(1, 3),
        journal=1.0,
        requests=(3, 8),
        max_tokens=60,
        step_s=(0.02, 0.08),
    ),
    "files": Profile(
        {**JOURNAL, "kill_scheduler": 2.0, "disk_full": 0.5, "hang_up": 1.0, "cancel": 1.0},
        num_faults=(1, 5),
        journal=1.0,
        max_tokens=60,
        step_s=(0.02, 0.08),
    ),
    "restarts": Profile(
        {**RESTARTS, "disk_full": 1.0, "kill_after_loss": 1.0, "hang_up": 1.0, "cancel": 1.0},
        num_faults=(1, 4),
        journal=1.0,
        requests=(3, 9),
        max_tokens=60,
        step_s=(0.01, 0.02, 0.08),
    ),
    "revocations": Profile(
        {"revoke": 6.0, "kill": 2.0, "kill_scheduler": 1.0, "hang_up": 2.0, "move": 1.0, "cancel": 1.0, "flood": 1.0},
        num_faults=(2, 6),
        requests=(3, 8),
        journal=0.7,
        max_tokens=60,
        step_s=(0.01, 0.02, 0.08),
    ),
    "flood": Profile({**CLIENTS, "flood": 6.0, "kill": 1.0}, max_waiting=6, requests=(3, 8), max_tokens=8),
    "crowds": Profile(
        {**CLIENTS, "kill": 2.0, "sigterm": 1.0, "kill_scheduler": 2.0, "flood": 1.0},
        num_faults=(0, 3),
        executors=(1, 2),
        requests=(8, 24),
        budgets=(8, 16, 64),
        max_tokens=40,
        journal=0.6,
    ),
    "hostile": Profile({**HOSTILE, "kill": 1.0}, num_faults=(2, 6)),
    "keepers": Profile(
        {
            **KEEPERS,
            "kill": 4.0,
            "freeze": 2.0,
            "hang": 1.0,
            "late_step": 2.0,
            "step_failure": 1.0,
            "sigterm": 2.0,
            "drain_finish": 1.0,
            "reset": 1.0,
            "upgrade": 2.0,
            "garbled_answer": 2.0,
            "kill_scheduler": 1.0,
            "cancel": 1.0,
        },
        num_faults=(2, 6),
        num_builds=3,
        max_tokens=60,
        step_s=(0.01, 0.02, 0.08),
        keeps=1.0,
        standbys=(0, 2),
    ),
    "standbys": Profile(
        {
            **SWAPS,
            "kill": 4.0,
            "late_step": 2.0,
            "sigterm": 2.0,
            "drain": 2.0,
            "reset": 2.0,
            "half_open": 1.0,
            "cut_both": 1.0,
            "cancel": 1.0,
            "hang_up": 1.0,
        },
        num_faults=(2, 6),
        executors=(1, 2),
        max_tokens=60,
        step_s=(0.01, 0.02, 0.08),
        keeps=1.0,
        standbys=(1, 2),
        is_roomy=True,
    ),
    "tasks": Profile(
        {
            **KILLS,
            **UPGRADES,
            **CLIENTS,
            "kill_scheduler": 2.0,
            "freeze_scheduler": 0.5,
            "sigterm": 1.0,
            "drain_finish": 1.0,
            "reset": 0.5,
        },
        num_faults=(1, 6),
        executors=(1, 4),
        requests=(3, 9),
        num_builds=3,
        tasks=1.0,
        pools=0.4,
        keeps=0.3,
        pool_grace_s=SHORT_POOL_GRACE_S,
    ),
    "fleets": Profile(
        {
            "kill_scheduler": 3.0,
            "freeze_scheduler": 2.0,
            "cut_both": 2.0,
            "kill": 1.0,
            "cancel": 1.0,
            "hang_up": 1.0,
        },
        num_faults=(1, 3),
        journal=0.7,
        executors=(64, 64),
        requests=(100, 300),
        max_waiting=1000,
        step_s=(0.02, 0.08),
        num_builds=3,
    ),
    "everything": Profile(
        {**EVERYTHING, "flood": 1.0},
        num_faults=(2, 8),
        num_builds=3,
        max_waiting=24,
        journal=0.7,
        pools=0.4,
        libraries=0.25,
        keeps=0.3,
        pool_grace_s=SHORT_POOL_GRACE_S,
    ),
}
