"""Writes the golden journal of the present version.

    python -m tests.server.journals.write

To be run once for each version, when the records have changed and `FORMAT_VERSION` was raised. A new field is given a
value other than its default in `example`, so that the file holds it.
"""

import sys
from array import array
from pathlib import Path
from typing import Any

import msgspec

from common import messages as m
from common.clocks import read_clocks
from scheduler_svc.core.requests.group_commit import JournalBatch
from scheduler_svc.core.requests.journal_records import (
    FORMAT_VERSION,
    AccountRecord,
    AnyRecord,
    Ending,
    EndRecord,
    ExecutorRecord,
    LifeRecord,
    Progress,
    PromptRecord,
    Record,
    RequestRecord,
    SharesRecord,
    StepRecord,
    SubmitRecord,
    encode,
)
from scheduler_svc.core.requests.journal_replay import read_batches
from scheduler_svc.server.journal_file import JournalFile

FOLDER = Path(__file__).parent


class Golden(msgspec.Struct):
    """What stands beside a golden journal.

    Attributes:
        fields: of each kind of record in that version: name, type and default.
        requests, crashes: what has to be read.
    """

    fields: dict[str, list[str]]
    requests: list[RequestRecord]
    crashes: int


def fields_of_records() -> dict[str, list[str]]:
    """What each kind of record has."""
    kinds = sorted(Record.__subclasses__(), key=lambda kind: kind.__name__)
    return {
        kind.__name__: [_described(field) for field in msgspec.structs.fields(kind)]
        for kind in kinds
        if kind.__module__ == Record.__module__
    }


def _described(field: Any) -> str:
    kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    kind = kind.replace(f"{Record.__module__}.", "").replace("typing.", "")
    return f"{field.name}: {kind}" + ("" if field.required else f" = {field.default!r}")


def example() -> list[list[AnyRecord]]:
    """Batches with every kind of record, and every field of it."""
    constraints = m.Constraints(
        presence_penalty=-0.5,
        frequency_penalty=1.5,
        repetition_penalty=1.1,
        bias_token_ids=_int32(7, 9),
        biases=_float32(-100.0, 0.1),
        min_tokens=3,
        bad_words=(_int32(192), _int32(5, 6)),
        allowed_token_ids=_int32(2, 7, 8, 9, 192, 193, 194, 219),
        grammar='{"grammars":[{"lark_grammar":"start: /[a-zé]+/"}]}',
    )
    params = m.SamplingParams(
        max_tokens=20,
        temperature=0.75,
        top_k=40,
        top_p=0.9,
        min_p=0.05,
        seed=2**62 + 1,
        stop_token_ids=(2, 151645),
        logprobs=2,
        prompt_logprobs=2,
        constraints=constraints,
    )
    whole = m.Submit(
        request_id="alice/chat-1-0",
        prompt=_int32(5, 6, 151643, 192, 219),
        params=params,
        n=2,
        stream=False,
        cache_salt="alice",
        priority=-3,
        timeout_s=900.5,
        client="5f3a0c190a7b4e6d8c2f1b3a4d5e6f70",
        client_name="alice",
        client_limit=8,
        context=bytes(range(256)),
        is_resumable=True,
        may_shorten=True,
        weight=2.5,
    )
    params = m.SamplingParams(max_tokens=9, prompt_logprobs=1)
    left = m.Submit(request_id="d", prompt=_int32(8, 9, 10), params=params)
    short = m.Submit(request_id="b", prompt=_int32(1), params=m.SamplingParams(max_tokens=2))
    params = m.SamplingParams(max_tokens=9, logprobs=1, prompt_logprobs=1)
    old = m.Submit(request_id="c", prompt=_int32(3, 4), params=params)
    params = m.SamplingParams(max_tokens=1, pooling="logits", pooled_token_ids=(9693, 2152))
    pooled = m.Submit(request_id="e", prompt=_int32(8, 9, 10), params=params)
    executors = (ExecutorRecord("gpu-7", ("generate", "score"), 32768, 151936),)
    burnt = Ending("error", "it burnt", "internal_error")
    columns = (_int32(8, 9), _float32(-0.25, -1e-7), _int32(-3), _float32(-2.5), True)
    ended = (Progress(_int32(8, 9), "model-a bf16", 1, burnt, *columns),)
    return [
        [LifeRecord(1), RequestRecord(40, 1.8e9, SubmitRecord.of(old), ended, True, 40, "another tokenizer")],
        [
            RequestRecord(
                41, 1.8e9 + 1.5, SubmitRecord.of(whole), (Progress(), Progress()), True, -151, "hash", 905.25, 63.5
            )
        ],
        [PromptRecord(41, 0, _int32(-2, 1), _float32(-0.5, -0.25), "model-a bf16", True)],
        [
            PromptRecord(41, 1, _int32(151643, 1, 192, 1, 219, 219), _float32(-9, -1, -8, -2, -7, -7), "model-a bf16"),
            _step("model-a bf16", (41, 0, 192, -0.5), (42, 0, 219, -3.75)),
            RequestRecord(43, 1.8e9 + 2, SubmitRecord.of(short), (Progress(),)),
        ],
        [
            _step("model-a bf16", (41, 1, 193, -0.1), (43, 0, 7), (42, 1, 2, -9999.0)),
            EndRecord(42, 3, Ending("stop"), 2),
        ],
        [SharesRecord(4096.5, 250.25, (AccountRecord("5f3a0c19", False, 5000.75, 128.5, 17),), is_whole=True)],
        [
            SharesRecord(4097.5, 251.0, (AccountRecord("5f3a0c19", True, 6000.0, 90.0, 2),), is_whole=False),
            _step("model-b bf16", (43, 1, 8)),
            EndRecord(43, None, Ending("length"), 2),
            LifeRecord(2, executors, ("embed",)),
        ],
        [_step("model-b bf16", (41, 2, 194, 0.0))],
        [RequestRecord(44, 1.8e9 + 3, SubmitRecord.of(left), (Progress(),))],
        [RequestRecord(45, 1.8e9 + 4, SubmitRecord.of(pooled), (Progress(),))],
        [
            PromptRecord(44, 0, _int32(-4), _float32(-1.0), "model-b bf16"),
            EndRecord(44, 0, Ending("cancelled"), 0, 1),
        ],
    ]


def _step(model: str, *tokens: tuple[int, int, int] | tuple[int, int, int, float]) -> StepRecord:
    """Arrival, position and token of each; for those with log-probabilities its own, half of which is token 1's."""
    arrivals, positions, token_ids = zip(*(each[:3] for each in tokens), strict=True)
    counts = [2 * (len(each) - 3) for each in tokens]
    ids = [token for each in tokens if len(each) > 3 for token in (each[2], 1)]
    values = [value for each in tokens for own in each[3:] for value in (own, own / 2)]
    return StepRecord(
        model,
        array("q", arrivals).tobytes(),
        _int32(*token_ids),
        _int32(*positions),
        _int32(*counts) if any(counts) else b"",
        _int32(*ids),
        _float32(*values),
    )


def _int32(*values: int) -> bytes:
    return array("i", values).tobytes()


def _float32(*values: float) -> bytes:
    return array("f", values).tobytes()


def main() -> None:
    """Write the two files."""
    path = FOLDER / f"v{FORMAT_VERSION}.db"
    if path.exists():
        sys.exit(f"{path} is there. A version has one journal for ever: raise FORMAT_VERSION first.")
    file = JournalFile(path, durable=False, read_clocks=read_clocks)
    file.load()
    payloads = [encode(batch) for batch in example()]
    for number, payload in enumerate(payloads, 1):
        file.save(JournalBatch(number, payload, 0, version=FORMAT_VERSION))
    file.close()
    contents = read_batches(payloads)
    golden = Golden(fields_of_records(), contents.requests, contents.life.crashes)
    path.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(golden), indent=1) + b"\n")
    print(f"wrote {path} and its .json: add both")


if __name__ == "__main__":
    main()
