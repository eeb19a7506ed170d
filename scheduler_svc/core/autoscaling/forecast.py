"""How long a request will wait for its first token on a fleet of some size. Pure.

Two things can be short. *Time*: prompts arrive faster than executors compute them beside the answers that they have
begun. *Memory*: sequences arrive faster than others give their blocks (or lanes) back. For both, what waits now is
followed as a fluid until the moment that is asked about, while executors that are on the way join; what chance adds
comes from the mean wait in a queue with a single server (Pollaczek and Khinchine), which each executor is for its part
of the prompts, and from the square root of the sequences that run, which is how far a Poisson number strays.
"""

import math
from typing import NamedTuple

from scheduler_svc.core.autoscaling.demand import FAST_S, Demand
from scheduler_svc.core.autoscaling.step_times import StepCost

LONGEST_S = 3600.0  # what is longer is reported as this: JSON has no infinity
STEPS_TO_BEGIN = 1.5  # a prompt waits for the rest of one in flight, and for another behind that (`--window`)
TAIL = 3.0  # times the mean wait that chance brings: where waits are exponential 95 of 100 are shorter
ALMOST_ALL = 0.98  # utilization at which formulas of queues are cut off


class Load(NamedTuple):
    """What the fleet has to do, and what its executors can do.

    Attributes:
        demand: what arrives.
        cost: of a step; None while it is not known.
        pool_blocks, block_size, max_num_seqs, max_batch_tokens: of an executor, on average.
        num_waiting, waiting_tokens: sequences that no executor has begun, and the tokens that they have.
        prefilling_tokens: of prompts that were begun, those that are still to be computed.
        num_running, used_blocks: sequences that hold a lane, and blocks in use, of all executors.
        held_blocks: blocks that admission would not give away, of executors that take sequences: what runs there holds
            them at its worst moment.
    """

    demand: Demand
    cost: StepCost | None
    pool_blocks: float = 0.0
    block_size: float = 1.0
    max_num_seqs: float = 1.0
    max_batch_tokens: float = 1.0
    num_waiting: int = 0
    waiting_tokens: int = 0
    prefilling_tokens: int = 0
    num_running: int = 0
    used_blocks: int = 0
    held_blocks: float = 0.0


class Outlook(NamedTuple):
    """What comes of a fleet.

    Attributes:
        ttft_s: of a request that arrives at the moment that was asked about.
        is_memory: whether memory makes most of it, and not time.
        work: executors that what arrives keeps busy.
    """

    ttft_s: float
    is_memory: bool
    work: float


class Forecast:
    """What a load does to fleets of any size.

    Args:
        load: its cost must be known.
        rate: sequences that arrive each second from now on.

    Attributes:
        work: see `Outlook`.
        floor_s: what a first token takes where nothing waits: no fleet gives it sooner.
    """

    def __init__(self, load: Load, rate: float) -> None:
        assert load.cost is not None
        self._load, self._rate, self._cost = load, rate, load.cost
        demand, cost = load.demand, load.cost
        prompt = demand.prompt_tokens
        if not prompt and load.num_waiting:  # nothing has arrived since the start; the journal has brought what waits
            prompt = load.waiting_tokens / load.num_waiting
        self._prompt = prompt * demand.computed_share
        output = self._output = demand.output_tokens
        self._mean_blocks = (prompt + output / 2) / load.block_size + 0.5
        self._last_blocks = (prompt + output) / load.block_size + 1.0
        # Sequences that an executor can run at once.
        self._slots = max(1.0, min(load.pool_blocks / self._mean_blocks, load.max_num_seqs))
        # Executor-seconds of a sequence: its own tokens, and its part of steps that are as full as memory lets them be.
        self._own_s = cost.token_s * (self._prompt + output) + cost.block_s * self._mean_blocks * output
        self._all_s = max(self._own_s + output * cost.step_s / self._slots, 1e-9)
        self.work = rate * self._all_s
        self.floor_s = STEPS_TO_BEGIN * cost.step_s + cost.token_s * self._prompt

    def outlook(self, num_ready: int, joins: tuple[float, ...], at_s: float) -> Outlook:
        """What a request sees that arrives in `at_s` seconds.

        Args:
            num_ready: executors that are there.
            joins: when others will be, in seconds from now, ascending.
        """
        size = num_ready + sum(join <= at_s for join in joins)
        if size == 0:
            first_s = joins[0] - at_s if joins else LONGEST_S
            return Outlook(min(LONGEST_S, first_s + self.floor_s), is_memory=False, work=self.work)
        begin_s, queue_s, crowd_s = self._steady(size, at_s)
        prompts_s, admission_s = self._waits(num_ready, joins, at_s)
        time_s, memory_s = max(queue_s, prompts_s), max(crowd_s, admission_s)
        ttft_s = min(LONGEST_S, begin_s + max(time_s, memory_s))
        return Outlook(ttft_s, is_memory=memory_s > time_s, work=self.work)

    def holds(self, num_ready: int) -> bool:
        """Whether so many executors have memory and lanes for all that runs, at its worst moment."""
        load = self._load
        return load.held_blocks <= num_ready * load.pool_blocks and load.num_running <= num_ready * load.max_num_seqs

    # --- if arrivals go on for ever ---

    def _steady(self, size: int, at_s: float) -> tuple[float, float, float]:
        """Seconds to compute a prompt, and those that chance makes it wait for time and for memory."""
        cost, load, rate = self._cost, self._load, self._rate
        use = min(rate * self._own_s / size, ALMOST_ALL)
        full_s = cost.seconds(load.max_batch_tokens, load.used_blocks / size)
        step_s = min(full_s, cost.step_s / (1.0 - use))
        speed = self._prompt_speed(size)
        prompts = min(rate * self._prompt / (size * speed), ALMOST_ALL)
        # A newcomer meets a step by its length: one that is full of prompts as often as prompts take time.
        met_s = prompts * full_s + (1.0 - prompts) * step_s
        begin_s = STEPS_TO_BEGIN * met_s + self._prompt / speed
        demand = load.demand
        fast = demand.sequences_per_s
        burst = demand.lasting_burst + (demand.burst - demand.lasting_burst) * math.exp(-at_s / FAST_S)
        burst *= demand.computed_share**2 * (rate / fast if fast > 0 else 1.0) / size
        queue_s = TAIL * burst / speed**2 / (2 * (1.0 - prompts))
        stay_s = self._output * step_s
        running = rate * stay_s
        over = running + math.sqrt(running) - size * self._slots
        crowd_s = max(0.0, over) / (size * self._slots) * stay_s
        return begin_s, queue_s, crowd_s

    # --- what waits now ---

    def _waits(self, num_ready: int, joins: tuple[float, ...], at_s: float) -> tuple[float, float]:
        """Seconds that what waits will still take then: to compute prompts, and to have memory."""
        load, rate = self._load, self._rate
        tokens = load.waiting_tokens * load.demand.computed_share + load.prefilling_tokens
        needed = (load.waiting_tokens + load.num_waiting * self._output) / load.block_size
        room = num_ready * load.pool_blocks - load.held_blocks
        # Sequences without memory, negative where some is left.
        short = min((needed - room) / self._last_blocks, load.num_waiting)
        before_s, size = 0.0, num_ready
        for until_s, joining in [*((join, 1) for join in joins if join <= at_s), (at_s, 0)]:
            seconds = max(0.0, until_s - before_s)
            tokens = max(0.0, tokens + (rate * self._prompt - size * self._prompt_speed(size)) * seconds)
            # What is free stays free: only a queue gets shorter by what others give back.
            short = max(min(short, 0.0), short + (rate - size / self._all_s) * seconds)
            short -= joining * self._slots
            before_s, size = until_s, size + joining
        speed = size * self._prompt_speed(size)
        return (tokens / speed if tokens else 0.0), max(0.0, short) * self._all_s / size

    def _prompt_speed(self, size: int) -> float:
        """Tokens of prompts that each of so many executors computes in a second, beside the answers that run."""
        load = self._load
        running = min(load.num_running / size, self._slots) if size else 0.0
        blocks = min(load.used_blocks / size, load.pool_blocks) if size else 0.0
        seconds = max(self._cost.seconds(load.max_batch_tokens, blocks), 1e-9)
        return max(1.0, load.max_batch_tokens - running) / seconds
