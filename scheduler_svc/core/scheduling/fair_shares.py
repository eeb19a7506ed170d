"""The place of each request in the order of service, so that clients share executors by their weights. Pure.

This is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), counted in tokens as by the virtual token counter
of Sheng et al. (OSDI 2024). A client has an account: the virtual time at which all that it has asked for will have been
served, if it gets its share. Its next request starts then or, if the client has asked for less than its share, now.
The start, moved by the priority, is the place. It is fixed when the request is accepted, and never changes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from common.messages import MAX_PRIORITY, Submit
from scheduler_svc.core.sequence import Sequence, Share

SEQUENCES_A_PRIORITY = 64  # of mean cost, that a step of priority is worth
PRIOR_OUTPUT = 128.0  # tokens of an answer while nothing is known: the median of Azure's conversations
MEMORY = 256  # of the last sequences: a mean is of about so many
MAX_ACCOUNTS = 4096
ADDRESS_MARK = "@"  # before the name of an account that is an address's


@dataclass(slots=True, eq=False)
class Mean:
    """The mean of the last values, about."""

    value: float
    count: int = 0

    def add(self, value: float) -> None:
        """Take in another value."""
        self.count = min(self.count + 1, MEMORY)
        self.value += (value - self.value) / self.count


@dataclass(slots=True, eq=False)
class Account:
    """What a client has asked for: all that yields, or all that does not.

    Attributes:
        output: tokens of an answer.
        finish: virtual time at which all will have been served.
        sequences: those that have not ended, in the order of their starts.
    """

    output: Mean
    finish: float = 0.0
    sequences: dict[Sequence, None] = field(default_factory=dict)

    @property
    def next_start(self) -> float:
        """Virtual time at which the client's next sequence starts at the earliest: its own never overtake each other,
        also where one that has ended took less than was expected."""
        return max(self.finish, next(reversed(self.sequences)).start) if self.sequences else self.finish


class SavedAccount(NamedTuple):
    """An account as the journal keeps it: its client, whether it is for what yields, and the account's numbers."""

    client: str
    yields: bool
    finish: float
    mean_output: float
    num_answers: int


class FairShares:
    """The accounts of all clients, and the virtual time.

    To spread over priorities gains a client nothing: all that does not yield is on one account. What yields has only
    what others leave, and is on another.

    Args:
        address_key: secret of this life, so that nobody can tell whose an address's account is.
        max_accounts: see MAX_ACCOUNTS.

    Attributes:
        virtual_time: tokens that a client of weight 1 has had by now, if it took its whole share: as much as the one
            that has had least of all that run. It never falls.
        cost: tokens that a sequence is expected to take.
    """

    def __init__(self, address_key: bytes = b"", max_accounts: int = MAX_ACCOUNTS) -> None:
        self.virtual_time = 0.0
        self.cost = Mean(0.0)
        self._address_key = address_key
        self._max_accounts = max_accounts
        self._output = Mean(PRIOR_OUTPUT)
        self._accounts: dict[tuple[str, bool], Account] = {}
        self._changed: set[tuple[str, bool]] = set()

    def __len__(self) -> int:
        return len(self._accounts)

    def share_for(self, submit: Submit) -> Share:
        """Return the share of a request that comes now."""
        num_prompt, params, yields = len(submit.prompt) // 4, submit.params, submit.priority == MAX_PRIORITY
        account = submit.client or (self._address_account(submit.address) if submit.address else "")
        known = self._accounts.get((account, yields)) or Account(Mean(self._output.value))
        expected = 0.0 if params.pooling != "none" else min(known.output.value, params.max_tokens)
        start = max(self.virtual_time, known.next_start)
        moved_by = submit.priority * SEQUENCES_A_PRIORITY * (self.cost.value or num_prompt + expected)
        return Share(account, submit.weight, num_prompt + expected, start, int(start + moved_by))

    def opened(self, sequence: Sequence) -> None:
        """Charge the client of a sequence that was accepted, now or by an earlier life."""
        share = sequence.share
        self.cost.add(share.cost)
        account = self._account(share.account, yields=sequence.yields)
        account.sequences[sequence] = None
        account.finish = max(account.finish, sequence.start + share.step)

    def ended(self, sequence: Sequence, *, is_whole: bool) -> None:
        """Settle the account of a sequence that has ended: what it cost is known now.

        Args:
            is_whole: whether the length of its answer tells how long answers get.
        """
        share = sequence.share
        account = self._account(share.account, yields=sequence.yields)
        account.finish += (sequence.num_served - share.cost) / share.weight
        del account.sequences[sequence]
        if is_whole and sequence.num_output:
            for mean in (account.output, self._output):
                mean.add(sequence.num_output)

    def advance(self, least_served: float) -> None:
        """Note the least that a running sequence has had: its start, and its tokens since then over the weight.

        The start alone would stand still while a long answer is first in rank. With its tokens every plan moves the
        virtual time, and newcomers do so themselves: one after the other they do not hold up for ever those that wait
        and have had more.
        """
        self.virtual_time = max(self.virtual_time, least_served)

    # --- the journal ---

    def saved(self, *, is_whole: bool) -> tuple[SavedAccount, ...]:
        """Return what the journal is to know of accounts: of all keys, or of those that changed since the last call."""
        names = list(self._accounts) if is_whole else [name for name in self._changed if name in self._accounts]
        self._changed.clear()
        return tuple(
            SavedAccount(*name, account.finish, account.output.value, account.output.count)
            for name in names
            if not name[0].startswith(ADDRESS_MARK)
            for account in (self._accounts[name],)
        )

    def restore(self, virtual_time: float, mean_cost: float, accounts: Iterable[SavedAccount]) -> None:
        """Go on where an earlier life was."""
        self.virtual_time = max(self.virtual_time, virtual_time)
        self.cost = Mean(mean_cost, MEMORY if mean_cost else 0)
        for client, yields, finish, mean_output, num_answers in accounts:
            self._accounts[client, yields] = Account(Mean(mean_output, num_answers), finish)

    def check(self, opened: Iterable[Sequence]) -> None:
        """Assert that accounts have these open sequences, and no others."""
        held = [sequence for account in self._accounts.values() for sequence in account.sequences]
        assert {*held} == {*opened}, "an account has lost a sequence, or keeps one"

    # --- inside ---

    def _address_account(self, address: str) -> str:
        return ADDRESS_MARK + blake2b(address.encode(), digest_size=16, key=self._address_key).hexdigest()

    def _account(self, name: str, *, yields: bool) -> Account:
        if not name.startswith(ADDRESS_MARK):
            self._changed.add((name, yields))
        if (account := self._accounts.get((name, yields))) is None:
            if len(self._accounts) >= self._max_accounts:
                self._forget()
            account = self._accounts[name, yields] = Account(Mean(self._output.value))
        return account

    def _forget(self) -> None:
        """Make room: the half of the idle accounts that differs least from new ones goes."""
        idle = sorted((account.finish, name) for name, account in self._accounts.items() if not account.sequences)
        for _, name in idle[: len(idle) // 2 + 1]:
            del self._accounts[name]
