"""A client of the HTTP service: it asks once, comes back when its connection breaks, and counts what it hears."""

from enum import Enum
from random import Random

import msgspec

from common import messages as m
from tests.sim.frontends import FrontendProcess
from tests.sim.story import Heard, Story
from tests.sim.visit import Visit
from tests.sim.witness import Witness
from tests.sim.world import World

MAX_SUBMITS = 50
TRY_AGAIN_S = (0.05, 0.25)


class State(Enum):
    """Where a client stands."""

    AWAY = "away"  # it has no connection and wants one
    WAITING = "waiting"  # for the answer to its Attach
    READING = "reading"
    DONE = "done"  # it has everything
    REFUSED = "refused"
    LOST = "lost"  # the service does not know its request, and may say so
    LEFT = "left"  # it will never come back


CANNOT_RESUME = 0.15  # of the clients know nothing of attaching: when their connection breaks they are gone
SETTLED = (State.DONE, State.REFUSED, State.LOST, State.LEFT)


class Client:
    """A client with one request.

    Args:
        rng: its own.
        frontends: those that run; the list changes.
        models: that there are in this run.

    Attributes:
        submit: what it asks; the client decides whether it could come back for that.
        stories: of the request's sequences.
        left_at: when it went for ever.
        may_be_cancelled: the service may have given its request up while it was away.
    """

    def __init__(
        self,
        world: World,
        rng: Random,
        submit: m.Submit,
        frontends: list[FrontendProcess],
        witness: Witness,
        models: list[str],
    ) -> None:
        self.state = State.AWAY
        self.stories = [Story(submit, index, models, witness.pools) for index in range(submit.n)]
        self.may_be_cancelled = False
        self.left_at = 0.0
        self._world = world
        self._rng = rng
        self._frontends = frontends
        self._witness = witness
        self._visit: Visit | None = None
        self._cancelled: set[int] = set()
        self._knows_accepted = False
        self._num_submits = 0
        self._submitted_at = 0.0
        self._away_since = self._read_since = 0.0
        self._resubmitted_at: float | None = None  # and has not heard of it
        self._maybe_away_since: list[float] = []  # when it left again, if what it asked again was accepted
        self._may_be_taken_over = False
        self._is_read = False  # as far as it knows, a frontend reads its request
        self._visited: list[FrontendProcess] = []
        self._rereads = rng.random() < 0.1
        self.submit = msgspec.structs.replace(submit, is_resumable=rng.random() > CANNOT_RESUME)
        self._num_calls = 0

    @property
    def id(self) -> str:
        """The id of its request."""
        return self.submit.request_id

    @property
    def is_settled(self) -> bool:
        """Whether it wants nothing more."""
        return self.state in SETTLED

    @property
    def frontend(self) -> FrontendProcess | None:
        """Where it reads."""
        return None if self._visit is None else self._visit.frontend

    # --- what it does ---

    def start(self) -> None:
        """Ask."""
        self._submitted_at = self._away_since = self._world.now
        self._call()

    def cancel(self, index: int) -> None:
        """End one of its sequences, or all (-1), and hear how that ends."""
        if self._visit is not None and self.state is State.READING:
            self._world.say(self.id, "cancels", index)
            self._cancelled.update(range(self.submit.n) if index < 0 else [index])
            self._visit.frontend.tell(m.Cancel(request_id=self.id, index=index))

    def hang_up(self, for_s: float) -> None:
        """Its connection breaks, and it comes back."""
        if self.state is State.READING:
            self._world.say(self.id, "hangs up for", round(for_s, 3))
            self._end_visit(says_so=True)
            self._come_back(for_s)

    def move(self, *, says_so: bool) -> None:
        """It reads on elsewhere before its old connection is known to be broken, or (`says_so`) at nearly that time."""
        if self.state in (State.READING, State.WAITING):
            self._world.say(self.id, "moves")
            self._may_be_taken_over |= self.state is State.WAITING
            self._end_visit(says_so=False, later_s=self._rng.uniform(0.0, 0.002 if says_so else 2.0))
            self._come_back(0.0)

    def quit(self, *, says_so: bool) -> None:
        """It goes for ever; a client that cannot resume is cancelled."""
        if not self.is_settled:
            self._world.say(self.id, "quits")
            if self._visit is not None and says_so:
                self._visit.is_wanted = False
                self._visit.frontend.leave(self.id, self._visit, may_come_back=False)
            elif self._visit is not None:
                self._end_visit(says_so=True)
            self.left_at = self._world.now
            self._settle(State.LEFT)

    # --- what it hears ---

    def accepted(self) -> None:
        """Its request was accepted."""
        self._heard_of_it()
        self._witness.told_accepted(self.id, self._submitted_at)

    def is_refusal(self, delta: m.TokenDelta) -> bool:
        """Whether a delta says that the request was not accepted."""
        return not self._knows_accepted and (self.id, delta.code) in self._witness.refused

    def refused(self, delta: m.TokenDelta) -> None:
        """It was not accepted, or its first try was."""
        self._world.say(self.id, "refused:", delta.code)
        self._leave_complete()
        if delta.code == "request_exists":
            self._come_back(0.0, submit=False)
        elif delta.code in ("queue_full", "too_many_requests", "no_executor") and self._rng.random() < 0.5:
            self._come_back(self._rng.uniform(0.1, 1.0))
        else:
            self._settle(State.REFUSED)

    def heard(self, delta: m.TokenDelta, heard: Heard, model: str) -> None:
        """A delta of one of its sequences, of which the connection has brought so much before."""
        self._heard_of_it()
        story = self.stories[delta.index]
        story.hear(heard, delta, model)
        is_whole = story.ending is not None
        count = (len(story.tokens), story.num_prompt_logprobs)
        self._witness.told(self.id, delta.index, self._submitted_at, *count, is_whole=is_whole)
        if delta.finish_reason is not None:
            self._world.say(self.id, delta.index, "ended:", delta.finish_reason, delta.code)
            self._check_ending(delta)
            if all(story.ending is not None for story in self.stories):
                self._complete()

    def attached(self, visit: Visit, answer: m.Attached) -> None:
        """The core has answered an Attach."""
        assert visit is self._visit, "another visit was attached"
        if answer.found:
            self.state = State.READING
            self._knows_accepted = self._is_read = True
            self._read_since = self._world.now
            assert (answer.n, answer.context) == (self.submit.n, self.submit.context)
            assert answer.prompt == self.submit.prompt
            since = [self._away_since, *self._maybe_away_since]
            self.may_be_cancelled |= any(self._witness.may_be_cancelled(self.submit, each) for each in since)
            self._resubmitted_at, self._maybe_away_since = None, []
            if self._witness.is_risky(self._submitted_at):
                for story in self.stories:
                    story.forget()
            return
        self._visit = None
        if not self._knows_accepted:
            self._come_back(self._rng.uniform(*TRY_AGAIN_S), submit=True)
            return
        is_risky = self._witness.is_risky(self._submitted_at)
        assert is_risky or not self.submit.is_resumable, f"{self.id} was accepted, and is not known any more"
        self._settle(State.LOST)

    def taken_over(self, visit: Visit) -> None:
        """Another reader has its request now: the client itself, if an Attach that it had given up came late."""
        assert self._may_be_taken_over, f"{self.id} is taken from its only reader"
        self._may_be_taken_over = False
        self.broken(visit)

    def broken(self, visit: Visit) -> None:
        """The frontend died, or lost the scheduler."""
        assert visit is self._visit
        self._end_visit(says_so=False)
        if self.submit.is_resumable:
            self._come_back(self._rng.uniform(0.0, 0.4))
        else:
            self._world.say(self.id, "cannot come back")
            self.left_at = self._world.now
            self._settle(State.LEFT)

    # --- inside ---

    def _heard_of_it(self) -> None:
        """Its request is known, and read here."""
        self._knows_accepted = self._is_read = True
        self._resubmitted_at, self._maybe_away_since = None, []

    def _come_back(self, in_s: float, *, submit: bool | None = None) -> None:
        if self._is_read:
            self._away_since, self._is_read = self._witness.away_since(self._read_since), False
        elif self._resubmitted_at is not None:
            self._maybe_away_since.append(self._witness.away_since(self._resubmitted_at))
            self._resubmitted_at = None
        self.state = State.AWAY
        self._num_calls += 1
        self._world.after(in_s, self._call, submit, self._num_calls)

    def _call(self, submit: bool | None = None, call: int = 0) -> None:
        """Find a frontend, and submit the request or attach to it."""
        if self.is_settled or call != self._num_calls:
            return
        up = [frontend for frontend in self._frontends if frontend.is_up]
        if not up:
            self._come_back(self._rng.uniform(*TRY_AGAIN_S), submit=submit)
            return
        frontend = self._rng.choice(up)
        is_unknown = submit is True
        if submit is None:
            # Some clients just ask again. Where they were before, what was on its way to them would reach them.
            is_rash = frontend not in self._visited and self._rng.random() < 0.5
            submit = not self._knows_accepted and (self._num_submits == 0 or is_rash)
        visit = Visit(self, frontend, is_attached=not submit)
        if submit:
            if (message := self._message(frontend)) is None:
                self._not_tokenized(frontend, is_unknown=is_unknown)
                return
            self._num_submits += 1
            assert self._num_submits < MAX_SUBMITS, f"{self.id} is submitted for ever"
            is_sent, state = frontend.open(message, visit), State.READING
        else:
            is_sent, state = frontend.attach(self.id, visit), State.WAITING
        self._world.say(self.id, "submits at" if submit else "attaches at", frontend.number, is_sent)
        if is_sent:
            self._visit, self.state = visit, state
            if self._num_submits == 1 and submit:
                self._is_read, self._read_since = True, self._world.now
            elif submit:
                self._resubmitted_at = self._world.now
            self._visited.append(frontend)
        else:
            self._come_back(self._rng.uniform(*TRY_AGAIN_S))

    def _message(self, frontend: FrontendProcess) -> m.Submit | None:
        """What a frontend makes of the request: a `max_tokens` that is left open is as much as the fleet can hold."""
        if not self.submit.may_shorten:
            return self.submit
        room = _most(frontend) - len(self.submit.prompt) // 4
        if room <= 0:
            return None
        params = msgspec.structs.replace(self.submit.params, max_tokens=room)
        return msgspec.structs.replace(self.submit, params=params)

    def _not_tokenized(self, frontend: FrontendProcess, *, is_unknown: bool) -> None:
        """The frontend refuses the request: it knows no executor, or none that can hold the prompt.

        A client comes back while executors may still come: until the core would call the task unavailable.

        Args:
            is_unknown: whether the core has just said that it has no such request.
        """
        self._world.say(self.id, "is refused by frontend", frontend.number)
        task = self.submit.params.task
        is_final = _most(frontend) > 0 or self._witness.pools.is_unavailable(task, self._world.now)
        if is_final and (is_unknown or self._num_submits == 0):
            self._settle(State.REFUSED)
        else:
            self._come_back(self._rng.uniform(*TRY_AGAIN_S))

    def _end_visit(self, *, says_so: bool, later_s: float | None = None) -> None:
        """Leave the frontend, which notices at once, later, or has seen to it itself."""
        visit, self._visit = self._visit, None
        if visit is None:
            return
        visit.is_wanted = False
        if says_so:
            visit.frontend.leave(self.id, visit, may_come_back=True)
        elif later_s is not None:
            self._world.after(later_s, lambda: visit.frontend.leave(self.id, visit, may_come_back=True))

    def _complete(self) -> None:
        self._leave_complete()
        if self._rereads:
            self._rereads = False
            self._come_back(self._rng.uniform(0.0, 1.0), submit=False)
        else:
            self._settle(State.DONE)

    def _leave_complete(self) -> None:
        """The answer is complete: its frontend knows."""
        assert self._visit is not None
        self._visit.is_wanted = False
        self._visit.frontend.end(self.id, self._visit)
        self._visit = None

    def _settle(self, state: State) -> None:
        self.state = state
        self._visit = None

    def _check_ending(self, delta: m.TokenDelta) -> None:
        """Whether its request may end like that."""
        name = f"{self.id}[{delta.index}]"
        if delta.finish_reason == "cancelled":
            assert self.may_be_cancelled or delta.index in self._cancelled, f"{name} was cancelled without a reason"
        if delta.finish_reason != "error":
            return
        match delta.code:
            case "deadline_exceeded":
                assert self.submit.timeout_s is not None, f"{name} has no deadline"
                is_over = self._world.now >= self._submitted_at + self.submit.timeout_s
                assert is_over or self._witness.away_until >= self._submitted_at, f"{name} had time left"
            case "internal_error":
                assert (self.id, delta.index) in self._witness.guilty, f"{name} ended for failures that were not its"
            case "invalid_api_key":
                assert self.id in self._witness.keyless, f"{name} had its key"
            case "capacity_lost" | "no_executor" | "task_not_served":
                assert (self.id, delta.index) in self._witness.pools.lost, f"{name} had an executor"
            case "grammars_lost":
                assert (self.id, delta.index) in self._witness.libraries.lost, f"{name} had an executor"
            case "context_length_exceeded" | "invalid_value":
                is_unfit = self.id.startswith("odd") or (self.id, delta.index) in self._witness.pools.unfit
                assert is_unfit, f"{name} ended with {delta.code}"
            case code:
                raise AssertionError(f"{name} ended with {code!r}: {delta.error}")


def _most(frontend: FrontendProcess) -> int:
    """Positions that a sequence may have, as far as a frontend knows."""
    return 0 if frontend.fleet is None else frontend.fleet.max_model_len
