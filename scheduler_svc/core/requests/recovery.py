"""What an earlier life of the scheduler has left: requests to take up again, and a count of its crashes. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import msgspec

from common.messages import Task
from common.vocabulary import Vocabulary
from common.wire import int32_array
from scheduler_svc.core.executor.capacity import Capacity
from scheduler_svc.core.requests.journal_records import (
    Ending,
    ExecutorRecord,
    LifeRecord,
    Progress,
    RequestRecord,
    SharesRecord,
)
from scheduler_svc.core.requests.journal_replay import read_batches
from scheduler_svc.core.requests.request_table import Request
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.sequence import Earlier, Generated, Share, largest_token, new_sequences

MAX_CRASHES = 3  # of the core in a row, with the same open requests: then one of them is why, and they are ended
SURVIVED_AFTER_S = 60.0
RESUME_WITHIN_S = 600.0  # of the last write; clients of a service that was gone for longer have given up
KEY_REVOKED = "the API key of this request was revoked"
TOKENIZER_GONE = "the scheduler serves a model with another tokenizer than this request began with; send it again"
_UNKNOWN = Vocabulary(0, "")


@dataclass(frozen=True)
class Loaded:
    """What the file of a journal gives.

    Attributes:
        batches: number and payload of each that can be read, in order.
        age_s: seconds since the last of them was written; 0 for a new file.
        wall_offset_s: what to add to the caller's time to get the time on the journal's timeline.
        damage: what is wrong with the file; empty if nothing is.
    """

    batches: list[tuple[int, bytes]]
    age_s: float
    wall_offset_s: float
    damage: str = ""

    @property
    def next_number(self) -> int:
        """Number of the first batch of a new life."""
        return self.batches[-1][0] + 1 if self.batches else 1


@dataclass(frozen=True)
class Legacy:
    """What a new life takes up.

    Attributes:
        requests: those that are not too old, and `num_too_old` the number of those that are.
        life: what it knows beside requests.
        shares: what clients have asked for.
        damage: what is wrong with the journal; empty if nothing is.
        num_damaged, cut: records that could not be read, and ids of requests that lost tokens or an end by that.
    """

    requests: list[RequestRecord]
    num_too_old: int
    life: LifeRecord
    shares: SharesRecord
    damage: str
    num_damaged: int
    cut: list[str]

    @classmethod
    def of(cls, loaded: Loaded) -> "Legacy":
        """What is in the journal."""
        contents = read_batches([payload for _, payload in loaded.batches])
        damage = loaded.damage
        if contents.num_damaged or contents.cut:
            damage = damage or "records are damaged"
        is_too_old = loaded.age_s > RESUME_WITHIN_S
        kept, too_old = ([], contents.requests) if is_too_old else (contents.requests, [])
        return cls(kept, len(too_old), contents.life, contents.shares, damage, contents.num_damaged, contents.cut)


class CrashCount:
    """Counts lives of the scheduler in a row that ended by a fault of the core.

    Attributes:
        crashes: so many, before this one.
    """

    def __init__(self) -> None:
        self.crashes = 0
        self._survived_at: float | None = None

    def begin(
        self, crashes: int, records: list[RequestRecord], now: float
    ) -> tuple[list[RequestRecord], list[str] | None]:
        """A life begins after so many crashes.

        Returns:
            The requests to take up, and, after `MAX_CRASHES`, the ids of those among them that are ended for it.
        """
        self.crashes = crashes
        self._survived_at = now + SURVIVED_AFTER_S if crashes else None
        if crashes < MAX_CRASHES:
            return records, None
        given_up = [record.submit.request_id for record in records if not record.has_ended]
        return [_given_up(record) for record in records], given_up

    def survived(self, now: float) -> bool:
        """Whether this life has just lasted long enough to begin the count anew."""
        if self._survived_at is None or now < self._survived_at:
            return False
        self.crashes, self._survived_at = 0, None
        return True


def restored(record: RequestRecord, scheduler: Scheduler, wall_offset_s: float) -> Request:
    """Give a request of an earlier life to the scheduler.

    Args:
        wall_offset_s: what to add to the caller's time to get the time on the journal's timeline.
    """
    submit, progress = record.submit.message(), record.progress
    accepted_at = record.accepted_at - wall_offset_s
    deadline = None if submit.timeout_s is None else accepted_at + submit.timeout_s
    earlier = [
        Earlier(
            Generated(told.token_ids, told.logprob_ids, told.logprobs, told.prompt_logprob_ids, told.prompt_logprobs),
            model=told.model,
            num_cached=told.num_cached,
            ended=None if told.ending is None else told.ending.reason,
        )
        for told in progress
    ]
    place = record.arrival if record.place is None else record.place
    start = place if record.start is None else record.start
    share = Share(submit.client, submit.weight, record.cost, start, place)
    sequences = scheduler.restore(submit, record.arrival, earlier, deadline, share)
    endings = [told.ending for told in progress]
    return Request(submit, sequences, accepted_at, None, endings=endings, tokenizer=record.tokenizer)


def remembered(life: LifeRecord, records: list[RequestRecord]) -> dict[str, Capacity]:
    """What executors of an earlier life could hold, by name.

    A journal of an earlier release, and one that was cut, names none: what fitted one then says how large it was.
    """
    known = {
        each.name: Capacity(cast("tuple[Task, ...]", each.tasks), each.positions, each.vocabulary)
        for each in life.executors or ()
    }
    for record in records:
        if life.executors is None and record.fits:
            submit = record.submit.message()
            prompt = int32_array("prompt", submit.prompt)
            (one,) = new_sequences(msgspec.structs.replace(submit, n=1), prompt, largest_token(submit, prompt), 0, None)
            name = f"an earlier release's, for {submit.params.task}"
            before = known.get(name, Capacity((submit.params.task,), 0, 0))
            positions, vocabulary = (
                max(before.positions, one.num_positions),
                max(before.vocabulary, one.largest_token + 1),
            )
            known[name] = Capacity(before.tasks, positions, vocabulary)
    return known


def life_record(crashes: int, executors: Mapping[str, Capacity], tasks: tuple[Task, ...]) -> LifeRecord:
    """What the journal keeps beside requests."""
    return LifeRecord(crashes, tuple(ExecutorRecord(name, *known) for name, known in executors.items()), tasks)


def of_this_tokenizer(
    records: list[RequestRecord], vocabularies: Mapping[Task, Vocabulary]
) -> tuple[list[RequestRecord], list[str]]:
    """End the requests whose token ids mean something else now: going on would change the text that a client has.

    Args:
        vocabularies: by task, that of the model that is served; none where it is not known.

    Returns:
        The requests, and the ids of those that are ended for it. These lose their tokens, and the log-probabilities of
        their prompts, also those that had ended: no text can be made of them any more. Those that an earlier release
        has bound to this tokenizer by its former hash are bound to it by the present one.
    """
    kept, ended = [], []
    for each in records:
        served = vocabularies.get(each.submit.params.task, _UNKNOWN)
        is_former = each.tokenizer and each.tokenizer == served.former_tokenizer
        record = msgspec.structs.replace(each, tokenizer=served.tokenizer) if is_former else each
        is_foreign = record.tokenizer and served.tokenizer and record.tokenizer != served.tokenizer
        if is_foreign and any(told.ending is None or told.num_bytes for told in record.progress):
            ended.append(record.submit.request_id)
            gone = Progress(ending=Ending("error", TOKENIZER_GONE, "tokenizer_changed"))
            kept.append(msgspec.structs.replace(record, progress=(gone,) * len(record.progress)))
        else:
            kept.append(record)
    return kept, ended


def of_these_clients(
    records: list[RequestRecord], client_ids: Mapping[str, str] | None
) -> tuple[list[RequestRecord], list[str]]:
    """Give the requests that an earlier release kept by the names of keys to the ids of these, and end those of names
    that are no key's: who gets such a name later is another client.

    Args:
        client_ids: by name, of all keys; None if nobody needs one: then nothing is known of them.

    Returns:
        The requests, and the ids of those that are ended for it.
    """
    if client_ids is None:
        return records, []
    kept, ended = [], []
    for record in records:
        submit = record.submit
        if not submit.client or submit.client_name:
            kept.append(record)
        elif (client_id := client_ids.get(submit.client)) is not None:
            name = submit.request_id.removeprefix(f"{submit.client}/")
            facts = {"request_id": f"{client_id}/{name}", "client": client_id, "client_name": submit.client}
            kept.append(msgspec.structs.replace(record, submit=msgspec.structs.replace(submit, **facts)))
        else:
            ended.append(submit.request_id)
            kept.append(_ended(record, Ending("error", KEY_REVOKED, "invalid_api_key")))
    return kept, ended


def _given_up(record: RequestRecord) -> RequestRecord:
    """The request, with an end for what is open."""
    message = f"the scheduler failed {MAX_CRASHES} times in a row with this request, or one that was open with it"
    return _ended(record, Ending("error", message, "internal_error"))


def _ended(record: RequestRecord, ending: Ending) -> RequestRecord:
    ended = [msgspec.structs.replace(told, ending=told.ending or ending) for told in record.progress]
    return msgspec.structs.replace(record, progress=tuple(ended))
