"""Whether an executor that says Hello fits the fleet. Pure."""

from collections.abc import Mapping, Sequence

from common import messages as m
from common.printable import name_fault
from common.vocabulary import Vocabulary

MAX_BLOCKS = 2**20
MAX_BLOCK_SIZE = 2**16
MAX_LANES = 2**13
MAX_SLOTS = 2**31 - 1
MAX_HISTORY = 2**28  # tokens that all lanes together could hold: the scheduler keeps them
_NAMES = ("executor", "node", "device", "build", "fingerprint", "dtype", "tokenizer", "grammars")  # that people read


def mismatch(hello: m.Hello, members: Sequence[m.Hello], served: Mapping[m.Task, Vocabulary]) -> m.Reject | None:
    """What keeps an executor from joining, if anything does.

    Its names must be fit to be shown, the scheduler's books of it must fit our memory when all that it promises is
    used, its slots an int32, and all that take a task must mean the same text by a token id.

    Args:
        members: what the members said in their Hellos.
        served: by task, the vocabulary of the model that is served; where there is none, that of the members counts.
    """
    for what in _NAMES:
        if (fault := name_fault(what, getattr(hello, what))) is not None:
            return m.Reject(reason=fault)
    longest = min(hello.max_model_len, hello.num_blocks * hello.block_size)
    for what, value, limit in (
        ("num_blocks", hello.num_blocks, MAX_BLOCKS),
        ("block_size", hello.block_size, MAX_BLOCK_SIZE),
        ("max_num_seqs", hello.max_num_seqs, MAX_LANES),
        ("num_blocks * block_size", hello.num_blocks * hello.block_size, MAX_SLOTS),
        ("max_num_seqs * max_model_len", hello.max_num_seqs * longest, MAX_HISTORY),
    ):
        if value > limit:
            return m.Reject(reason=f"{what} is {value}, the limit is {limit}")
    if len(set(hello.tasks)) != len(hello.tasks):
        return m.Reject(reason=f"tasks are {', '.join(hello.tasks)}, and each counts once")
    for task in hello.tasks:
        for whose, ours in _vocabularies(task, members, served):
            if reason := _other_vocabulary(hello, ours, whose, needs_size=task == "generate"):
                return m.Reject(reason=reason, may_pass=task not in served)
    return None


def _vocabularies(
    task: m.Task, members: Sequence[m.Hello], served: Mapping[m.Task, Vocabulary]
) -> list[tuple[str, Vocabulary]]:
    """What an executor that takes a task must have, and whose that is."""
    if task in served:
        whose = "the model that is served" + ("" if task == "generate" else f" for {task!r}")
        return [(whose, served[task])]
    others = {(other.vocab_size, other.tokenizer): other.executor for other in members if task in other.tasks}
    return [(f"{executor} in this fleet", Vocabulary(*vocabulary)) for vocabulary, executor in others.items()]


def _other_vocabulary(hello: m.Hello, ours: Vocabulary, whose: str, *, needs_size: bool) -> str | None:
    """How an executor's tokens differ from ours, if they do: the same ids would stand for other text.

    Models of one tokenizer may have been made with more rows than it has tokens, and an embedder with another number of
    them. Only what generates could give an id that others do not have.

    Args:
        needs_size: whether the sizes have to be the same, also where both tokenizers are known and equal.
    """
    is_same = bool(hello.tokenizer) and hello.tokenizer == ours.tokenizer
    if hello.vocab_size != ours.size and (needs_size or not is_same):
        return f"vocab_size is {hello.vocab_size}, that of {whose} is {ours.size}"
    if hello.tokenizer and ours.tokenizer and hello.tokenizer != ours.tokenizer:
        return f"its tokenizer ({hello.tokenizer[:12]}) is not that of {whose} ({ours.tokenizer[:12]})"
    return None
