"""What clients have used of their limits of a minute: requests and tokens. Pure.

An HTTP request pays when its first prompt is accepted, for all that it may take: its prompts, and `max_tokens` for each
of its answers. What its answers have not taken is given back at their ends. A life of the scheduler begins with full
accounts, and what the journal brought back has paid in an earlier one.
"""

from dataclasses import dataclass, field
from math import ceil, inf

import msgspec

from common.errors import RequestRejected
from common.messages import MAX_PRIORITY, Charge, Rate, RateLimits, Submit
from scheduler_svc.core.requests.retention import whole_of

MINUTE_S = 60.0


class Bucket:
    """A token bucket: it holds what may be used within a minute, and time refills it evenly.

    What is *reserved* may turn out to be less. Time pays for what was used first, and then for reservations, the oldest
    first; of a reservation only what time has not paid for yet can be given back. So long answers do not hold for
    their whole time what they have been reserved, and nothing is given back twice: in any time t no more is used, of
    what came in that time, than the limit of a minute and what t refills.

    Attributes:
        limit: of a minute; 0 for none, and then nothing is to be asked of the bucket.
    """

    def __init__(self) -> None:
        self.limit = 0
        self._used = 0.0  # that time has not paid for
        self._reserved: dict[str, float] = {}  # likewise, by name, the oldest first
        self._num_reserved = 0.0  # all of them
        self._paid_at = 0.0

    @property
    def free(self) -> float:
        """What may be used now; below 0 where the limit was lowered."""
        return self.limit - self._used - self._num_reserved

    def pass_time(self, limit: int, now: float) -> None:
        """Pay for the time since the last call, in which the limit was that of then; without one, all is paid for."""
        paid = self.limit * (now - self._paid_at) / MINUTE_S if self.limit else inf
        self.limit, self._paid_at = limit, now
        of_used = min(self._used, paid)
        self._used -= of_used
        paid -= of_used
        while paid > 0 and self._reserved:
            oldest = next(iter(self._reserved))
            paid -= self._take(oldest, paid)

    def refilled_in_s(self, amount: float) -> float:
        """Seconds until so much is free, if nothing is given back before."""
        return max(amount - self.free, 0.0) * MINUTE_S / self.limit

    def use(self, amount: int) -> None:
        """So much is used."""
        self._used += amount

    def reserve(self, name: str, amount: int) -> None:
        """Up to so much will be used by what has this name."""
        self._reserved[name] = self._reserved.get(name, 0.0) + amount
        self._num_reserved += amount

    def settle(self, name: str, reserved: int, used: int) -> None:
        """So much of a reservation is over, and no more was used than that. Nothing is to be settled where time has
        paid for all of it, or where nothing was reserved."""
        if name in self._reserved:
            left = self._take(name, reserved)
            self._used += max(left - (reserved - used), 0.0)

    def _take(self, name: str, amount: float) -> float:
        """Make a reservation smaller. Returns by how much."""
        had = self._reserved[name]
        if had > amount:
            self._reserved[name] = had - amount
            self._num_reserved -= amount
            return amount
        del self._reserved[name]
        self._num_reserved = self._num_reserved - had if self._reserved else 0.0  # without errors of rounding
        return had


@dataclass(slots=True)
class Account:
    """What one client has used."""

    requests: Bucket = field(default_factory=Bucket)
    tokens: Bucket = field(default_factory=Bucket)


class Accounts:
    """The accounts of clients with limits, by their ids: as many as there have been API keys with limits in this life.

    Both keys of a client that has two are for one account, and each is asked by its own limits.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}

    def check(self, submit: Submit, now: float) -> Submit:
        """Look whether a request can be paid. Nothing is paid yet.

        Returns:
            The request; with a smaller `max_tokens` if its client has asked for no number, and as much as fits would
            be more than it may have in a minute.

        Raises:
            RequestRejected: it can never be paid (`invalid_value`), or not now (`rate_limit_exceeded`).
        """
        if (charge := submit.charge) is None or not charge.is_limited:
            return submit
        account = self._account(submit.client, charge, now)
        limit = charge.tokens_per_minute
        if limit and charge.tokens > limit:
            submit = _shortened(submit, limit)
        wants = ((account.requests, 1, "requests"), (account.tokens, _tokens_of(submit), "tokens"))
        leaves_half = submit.priority == MAX_PRIORITY  # the other half is for requests that somebody waits for
        waits = [
            (bucket.refilled_in_s(min(amount + leaves_half * bucket.limit // 2, bucket.limit)), bucket, amount, what)
            for bucket, amount, what in wants
            if bucket.limit
        ]
        wait_s, bucket, amount, what = max(waits, key=lambda each: each[0])
        if wait_s > 0:
            left = f"{max(int(bucket.free), 0)} of {bucket.limit} {what} a minute left"
            asked = f", and this request may take {amount}" if what == "tokens" else ""
            half = f"; requests of priority {MAX_PRIORITY} leave half of them to others" if leaves_half else ""
            message = f"{submit.client_name!r} has {left}{asked}{half}; try again in {ceil(wait_s)} s"
            raise RequestRejected(message, "rate_limit_exceeded", ceil(wait_s))
        return submit

    def pay(self, submit: Submit, now: float) -> None:
        """A request was accepted."""
        if (charge := submit.charge) is not None and charge.is_limited:
            account = self._account(submit.client, charge, now)
            if charge.requests_per_minute:
                account.requests.use(1)
            if charge.tokens_per_minute:
                account.tokens.reserve(whole_of(submit.request_id), _tokens_of(submit))

    def settle(self, submit: Submit, reserved: int, used: int, now: float) -> None:
        """So many tokens of what was paid for a request are over, and so many of these were used."""
        if (account := self._accounts.get(submit.client)) is not None:
            account.tokens.pass_time(account.tokens.limit, now)
            account.tokens.settle(whole_of(submit.request_id), reserved, used)

    def ended(self, submit: Submit, num_output: int, now: float) -> None:
        """A request has ended, with so many tokens."""
        self.settle(submit, submit.most_tokens, len(submit.prompt) // 4 + num_output, now)

    def limits(self, submit: Submit, now: float, *, is_accepted: bool) -> RateLimits | None:
        """What the client of a request has left, once that was accepted or refused; None if it pays nothing, or its
        client has no limits."""
        if (charge := submit.charge) is None or not charge.is_limited:
            return None
        account = self._account(submit.client, charge, now)
        requests, tokens = _rate(account.requests), _rate(account.tokens)
        return RateLimits(request_id=submit.request_id, is_accepted=is_accepted, requests=requests, tokens=tokens)

    def _account(self, client: str, charge: Charge, now: float) -> Account:
        """A client's account as it is now, with the limits of this key."""
        account = self._accounts.setdefault(client, Account())
        account.requests.pass_time(charge.requests_per_minute, now)
        account.tokens.pass_time(charge.tokens_per_minute, now)
        return account


def _tokens_of(submit: Submit) -> int:
    return submit.charge.tokens if submit.charge is not None else 0


def _shortened(submit: Submit, limit: int) -> Submit:
    """The request with answers that its client can pay for within a minute. Raises RequestRejected if there is none, or
    the client has said how long they are to be."""
    assert submit.charge is not None
    room = (limit - len(submit.prompt) // 4) // submit.n
    if not submit.may_shorten or room < 1:
        asked = "prompt" if submit.may_shorten else "prompt and 'max_tokens'"
        message = f"the request may take {submit.charge.tokens} tokens ({asked}), and this API key has {limit} a minute"
        raise RequestRejected(message)
    shorter = msgspec.structs.replace(submit, params=msgspec.structs.replace(submit.params, max_tokens=room))
    charge = msgspec.structs.replace(submit.charge, tokens=shorter.most_tokens)
    return msgspec.structs.replace(shorter, charge=charge)


def _rate(bucket: Bucket) -> Rate | None:
    if not bucket.limit:
        return None
    return Rate(limit=bucket.limit, remaining=max(int(bucket.free), 0), reset_s=bucket.refilled_in_s(bucket.limit))
