"""What an executor and the scheduler say to each other; the messages of a step are in `common.messages.steps`."""

from typing import Annotated

from msgspec import Meta

from common.messages.base import MAX_NAME_CHARS, Count, Epoch, Message, Name, Positive, Task, Text
from common.messages.steps import MAX_HIDDEN_SIZE, Plan, StepFailed, StepResult

# --- executor -> scheduler ---


class Pool(Message, frozen=True):
    """The KV memory that an executor computes in, if a keeper keeps it: it outlives the process.

    Attributes:
        pool: its name, a secret: a scheduler lets each peer that knows it continue the pool.
        lease: which holder this is; each later one has a greater number.
        layout: what its bytes mean, beside what Hello says of the model and the blocks.
        epoch: the last one whose plans may have written it; 0 if it is new, or a step in it failed.
    """

    pool: Annotated[str, Meta(min_length=32, max_length=32)]
    lease: Epoch
    layout: Annotated[str, Meta(min_length=1, max_length=256)]
    epoch: Annotated[int, Meta(ge=0, le=2**53)]


class Hello(Message, frozen=True, tag="hello"):
    """An executor that can take a plan at once: weights loaded, kernels warm. Answered by Welcome or Reject.

    Attributes:
        executor: name for operators (`--name`, or host and a number). Better unique, and the same after a restart: what
            was learned of an executor (how long its steps take, that it only fails) is kept by its name.
        build: Baton's version on that side, with its commit where that is known. People read it; it decides nothing.
        fingerprint: hash of the model's config and weights; equal fingerprints give equal tokens.
        dtype: of activations and KV cache (`float32`, `bfloat16`, `float16`), then `gguf` if weights are stored in
            GGUF's integers, then how they are quantized (`bfloat16-gguf-int8`); executors of another dtype give other
            tokens.
        device: for people (`cpu`, `cuda:0 NVIDIA H200`).
        num_blocks, block_size: the KV pool; block ids run from 0 to num_blocks - 1.
        max_num_seqs: lanes; at most this many rows in a plan.
        max_batch_tokens: at most this many tokens in a plan.
        max_model_len: at most this many positions in a sequence.
        vocab_size: token ids run from 0 to vocab_size - 1.
        pid: process id on its host.
        tokenizer: hash of the tokens in its model's tokenizer.json (`common.vocabulary`); empty if there is no such
            file, as executors need none.
        grammars: name and version of the library that masks tokens by grammars; empty if there is no tokenizer.json.
            Other versions may allow other tokens.
        start_s: how long its process took from its start to its first Hello; another one will take about as long.
        pool: its KV memory; None if that ends with the process.
        node: the machine that it runs on, as a cluster calls it; empty if none was said.
        tasks: those that it takes, each once; a plan has no rows of another one.
        hidden_size: floats of a hidden state.
    """

    executor: Name
    build: Name
    fingerprint: Name
    dtype: Name
    device: Name
    num_blocks: Positive
    block_size: Positive
    max_num_seqs: Positive
    max_batch_tokens: Positive
    max_model_len: Positive
    vocab_size: Positive
    pid: Count
    tokenizer: Annotated[str, Meta(max_length=64)]
    grammars: Annotated[str, Meta(max_length=64)]
    start_s: Annotated[float, Meta(ge=0.0, le=1e6)]
    pool: Pool | None
    node: Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
    tasks: Annotated[tuple[Task, ...], Meta(min_length=1, max_length=3)]
    hidden_size: Annotated[int, Meta(ge=1, le=MAX_HIDDEN_SIZE)]


class ExecutorHeartbeat(Message, frozen=True, tag="alive"):
    """Sent every `HEARTBEAT_INTERVAL_S`, by a thread of its own: the process lives, idle or not.

    Attributes:
        has_standby: whether another process waits to continue its pool.
    """

    epoch: Epoch
    has_standby: bool = False


class Leaving(Message, frozen=True, tag="leaving"):
    """The executor was told to stop (SIGTERM): no new plans, please, and EpochOver once its sequences are moved."""

    epoch: Epoch


ExecutorToScheduler = Hello | ExecutorHeartbeat | StepResult | StepFailed | Leaving


# --- scheduler -> executor ---


class Welcome(Message, frozen=True, tag="welcome"):
    """The executor is part of the fleet; everything it says from now on carries this epoch."""

    epoch: Epoch


class Reject(Message, frozen=True, tag="reject"):
    """The executor cannot join. `reason` says what differs; trying again without a change is pointless, unless it
    `may_pass`: it does not fit executors of the fleet, which may leave."""

    reason: Text
    may_pass: bool = False


class SchedulerHeartbeat(Message, frozen=True, tag="beat"):
    """Sent every `HEARTBEAT_INTERVAL_S`; an executor that hears none for `LOSS_TIMEOUT_S` says Hello afresh."""

    epoch: Epoch


class EpochOver(Message, frozen=True, tag="over"):
    """This epoch has ended for the scheduler (lost, drained, restarted): drop its plans, say Hello if you stay."""

    epoch: Epoch
    reason: Text


class Leave(Message, frozen=True, tag="leave"):
    """An operator wants this executor to end, as SIGTERM does: it answers with Leaving, and exits with code 0."""

    epoch: Epoch


SchedulerToExecutor = Welcome | Reject | SchedulerHeartbeat | EpochOver | Leave | Plan
