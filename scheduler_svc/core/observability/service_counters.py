"""Counts and times what happens in the core, and decides nothing. Pure: the time is the caller's."""

from collections import Counter, deque
from collections.abc import Sequence as Lists
from dataclasses import dataclass

from common.messages import StepResult, Submit
from scheduler_svc.core.observability.prometheus_text import PrometheusMetrics
from scheduler_svc.core.observability.recent import History, Pauses, RecentPercentiles
from scheduler_svc.core.observability.sequence_lives import SequenceLives
from scheduler_svc.core.observability.timeline import Timeline
from scheduler_svc.core.scheduling.stats import Moves, SchedulerStats
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import SequenceEnd, StepOutput

SAMPLE_INTERVAL_S = 1.0
RATE_WINDOW_S = 10.0
STEP_MS_WEIGHT = 0.1  # of the newest step in the exponential mean


class Rate:
    """Growth of a count over the last `RATE_WINDOW_S` seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float, total: int) -> None:
        """Note the count; to be called about once a second."""
        self._samples.append((now, total))
        while now - self._samples[0][0] > RATE_WINDOW_S:
            self._samples.popleft()

    def per_second(self) -> float:
        """The rate, 0 before there are two samples."""
        if len(self._samples) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self._samples[0], self._samples[-1]
        return (n1 - n0) / (t1 - t0)


@dataclass(slots=True)
class Steps:
    """An executor's steps in its present epoch.

    Attributes:
        answered_at: when the last one was.
    """

    count: int = 0
    mean_ms: float = 0.0
    answered_at: float = 0.0


class ServiceCounters:
    """Counts of what has happened so far, for the status report and for Prometheus.

    Args:
        stats: the scheduler's own counts.
        lives: of sequences.

    Attributes:
        metrics: those that events move.
        steps: by epoch.
        ended_by: sequences, by how they ended.
        executors_lost: epochs that ended with a failure.
        output_rate, prefill_rate: tokens.
        first_token, between_tokens: of the last minutes.
        history: of the last minutes.
        pauses: of streams whose executors' epochs ended.
        lives: as given.
        timeline: the last events.
    """

    def __init__(self, stats: SchedulerStats, lives: SequenceLives) -> None:
        self.metrics = PrometheusMetrics()
        self.steps: dict[int, Steps] = {}
        self.ended_by: Counter[str] = Counter()
        self.executors_lost = 0
        self.output_rate, self.prefill_rate = Rate(), Rate()
        self.first_token = RecentPercentiles(self.metrics.first_token_seconds)
        self.between_tokens = RecentPercentiles(self.metrics.inter_token_seconds)
        self.history = History()
        self.pauses = Pauses()
        self.lives = lives
        self.timeline = Timeline()
        self._stats = stats
        self._submitted: dict[Sequence, float] = {}
        self._first_at: dict[Sequence, float] = {}  # when the first token came
        self._paused: dict[Sequence, tuple[float, str]] = {}  # since an executor was lost: the time, and the cause
        self._interrupted: dict[Sequence, float] = {}  # with tokens, and waiting: since the last one, or the start
        self._paused_by: dict[Sequence, int] = {}  # of these, whose executor's epoch has ended: the epoch
        self._next_sample = float("-inf")

    def executor_joined(self, epoch: int, name: str) -> None:
        """An epoch began."""
        self.steps[epoch] = Steps()
        self.lives.executor_joined(epoch, name)
        self.metrics.epochs_started.inc()

    def executor_rejected(self) -> None:
        """An executor may not join."""
        self.metrics.executors_rejected.inc()

    def executor_ended(self, epoch: int, cause: str, resumed: list[Sequence], now: float, *, is_failure: bool) -> None:
        """An epoch ended; the sequences that ran there go on elsewhere."""
        answered_at = self.steps.pop(epoch).answered_at
        self.lives.executor_ended(epoch, cause, resumed, now, is_failure=is_failure)
        self.executors_lost += is_failure
        self.metrics.epochs_ended.labels(cause).inc()
        self.metrics.resumed.labels(cause).inc(len(resumed))
        for sequence in resumed:
            self._paused.setdefault(sequence, (now, cause))
            if sequence.num_output > 0:
                self._interrupted.setdefault(sequence, answered_at)
        paused = [each for each in resumed if each in self._interrupted and each not in self._paused_by]
        self._paused_by |= dict.fromkeys(paused, epoch)
        self.pauses.began(epoch, len(paused))

    def moved(self, moves: Moves, now: float) -> None:
        """Plans were made, in which some sequences begin, and for which others lost their lanes."""
        if moves.moves:
            self.lives.moved(moves.moves, now)
            self.timeline.moved(moves.moves)
        for sequence in moves.admitted:
            self.metrics.queue_seconds.observe(now - self._submitted[sequence])
        for sequence, epoch in moves.interrupted:
            if sequence in self._submitted and (steps := self.steps.get(epoch)) is not None:
                self._interrupted.setdefault(sequence, steps.answered_at)

    def step_done(self, result: StepResult, output: StepOutput, now: float) -> None:
        """A plan was answered.

        A sequence that decodes has a row in every plan, so its last token came with the answer before this one: the
        time between the two answers is that between the tokens of all of them. One that sat out a plan, because memory
        was short or another sequence had to run alone, is counted with that time too.
        """
        steps = self.steps[result.epoch]
        if output.firsts:
            self.lives.got_token(output.firsts, result.epoch, now, is_first=True)
        if output.returned:
            returned = [sequence for sequence in output.returned if sequence not in output.late]
            self.lives.got_token(returned, result.epoch, now, is_first=False)
        if output.num_decoded:
            self.metrics.inter_token_seconds.observe(now - steps.answered_at, output.num_decoded)
        for sequence in output.returned:
            if (last := self._interrupted.pop(sequence, None)) is not None:
                self.metrics.inter_token_seconds.observe(now - last)
                if (epoch := self._paused_by.pop(sequence, None)) is not None:
                    self.pauses.over(epoch, now - last)
        for sequence in output.late:
            self._interrupted[sequence] = now
        for sequence in (*output.numberless, *output.unmasked):
            if sequence.num_output > 0:  # its last token came with the answer before
                self._interrupted.setdefault(sequence, steps.answered_at)
        steps.answered_at = now
        steps.count += 1
        weight = STEP_MS_WEIGHT if steps.count > 1 else 1.0
        steps.mean_ms += (result.compute_us / 1000 - steps.mean_ms) * weight
        self.metrics.step_seconds.observe(result.compute_us / 1e6)

    def request_refused(self, code: str) -> None:
        """A request was not taken."""
        self.metrics.sequences_ended.labels("refused").inc()
        self.metrics.requests_refused.labels(code).inc()

    def request_taken(self, submit: Submit) -> None:
        """A request was taken, for the first time in all lives of the scheduler."""
        is_first = submit.charge is not None
        self.metrics.client_asked(submit.client_name, len(submit.prompt) // 4, is_first=is_first)

    def request_ended(self, submit: Submit, num_output: int) -> None:
        """All sequences of a request have ended, with so many tokens together."""
        self.metrics.client_got(submit.client_name, num_output)

    def requests_restored(self, count: int) -> None:
        """So many open requests came back from the journal."""
        self.metrics.requests_restored.inc(count)

    def submitted(self, sequences: Lists[Sequence], now: float, *, is_restored: bool = False) -> None:
        """Sequences of a request that was taken, now or in an earlier life: then its pause is counted from now on."""
        self.lives.begun(sequences, now, is_restored=is_restored)
        for sequence in sequences:
            self._submitted[sequence] = now
            if sequence.num_output > 0:
                self._interrupted[sequence] = now

    def stepped(self, output: StepOutput, now: float) -> None:
        """Sequences have new tokens; some have ended."""
        for sequence in output.firsts:
            self.metrics.first_token_seconds.observe(now - self._submitted[sequence])
            self._first_at[sequence] = now
        if self._paused:
            for sequence in (*output.sequences, *(end.sequence for end in output.ends if end.sequence.pooled)):
                if (paused := self._paused.pop(sequence, None)) is not None:
                    since, cause = paused
                    self.metrics.resume_seconds.labels(cause).observe(now - since)
        for end in output.ends:
            first_at, num_more = self._first_at.get(end.sequence), end.sequence.num_output - 1
            if first_at is not None and num_more > 0 and end.reason != "error":
                self.metrics.output_token_seconds.observe((now - first_at) / num_more)
            self.ended(end, now)

    def ended(self, end: SequenceEnd, now: float) -> None:
        """A sequence has ended."""
        self._paused.pop(end.sequence, None)
        self._interrupted.pop(end.sequence, None)
        if (epoch := self._paused_by.pop(end.sequence, None)) is not None:
            self.pauses.over(epoch, 0.0)
        self._first_at.pop(end.sequence, None)
        self.lives.ended(end, now)
        submitted = self._submitted.pop(end.sequence)
        self.ended_by[end.reason] += 1
        outcome = "deadline" if end.code == "deadline_exceeded" else end.reason
        self.metrics.sequences_ended.labels(outcome).inc()
        self.metrics.sequence_seconds.observe(now - submitted)
        self.metrics.prompt_lengths.observe(end.sequence.num_prompt)
        self.metrics.output_lengths.observe(end.sequence.num_output)

    def tick(self, now: float, running: int, waiting: int) -> None:
        """Sample what is sampled; to be called ten times a second.

        Args:
            running, waiting: sequences.
        """
        self.timeline.tick(now)
        if now >= self._next_sample:
            self._next_sample = now + SAMPLE_INTERVAL_S
            self.output_rate.sample(now, self._stats.output_tokens)
            self.prefill_rate.sample(now, self._stats.prefill_tokens)
            self.first_token.tick(now)
            self.between_tokens.tick(now)
            stats, rates = self._stats, (self.output_rate.per_second(), self.prefill_rate.per_second())
            prompts = (stats.queried_prompt_tokens, stats.cached_prompt_tokens)
            self.history.add(now, rates, prompts, running, waiting)
