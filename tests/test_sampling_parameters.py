"""A sampling parameter stands in every place that it has to: a new one is added until these tests pass.

The places, each found by a search for an existing parameter (`min_p`):

 1. common/messages/steps.py: `SamplingParams`, with the value that turns it off as its default, and `Plan`'s column
 2. common/sampling_columns.py: its line in the table
 3. docs/protocol.md
 4. README.md
 5. scheduler_svc/core/requests/journal_records.py: `SamplingRecord`, at its end, or a restart loses the parameter
 6. scheduler_svc/frontend/requests/sampling.py: the field of a request
 7. scheduler_svc/frontend/requests/messages_api/schemas.py and chat.py: the same for requests of Anthropic's API
 8. scheduler_svc/frontend/text/sampling_defaults.py, if a model's generation_config.json may recommend it
 9. scheduler_svc/frontend/http/page_about.py and page/files/talk/parameters.js: the page's control of it
10. scheduler_svc/client/options.py: the command line's option
11. kernels/reference/sampling.py: `SamplingInputs`, and what the parameter does
12. kernels/gpu/sampling/draw.py: the same in Triton
13. kernels/cpu/csrc/sampling.cpp: the same in C++
"""

import inspect
import re
from types import SimpleNamespace

import click
import msgspec
import numpy as np
import pytest
import torch

from common import messages as m
from common.plan import ExecutorLimits, parse_plan
from common.sampling_columns import SAMPLING_COLUMNS, SamplingColumns
from executor_svc.runner.group_runner import pack, unpack
from executor_svc.runner.trial_plans import trial_plan
from executor_svc.staging.arena import Arena
from executor_svc.staging.batch import arena_size, pad_decode, stage
from kernels import reference
from kernels.gpu.sampling.draw import choose_kernel
from kernels.reference import INPUT_DTYPES, SamplingInputs
from scheduler_svc.client.options import sampling_options
from scheduler_svc.core.executor.block_manager import BlockTable
from scheduler_svc.core.executor.lanes import Lanes
from scheduler_svc.core.executor.plan_builder import join_columns, sampling_columns
from scheduler_svc.core.requests.journal_records import SubmitRecord
from scheduler_svc.core.sequence import new_sequences
from scheduler_svc.frontend.http import page_about
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.messages_api.chat import chat_request
from scheduler_svc.frontend.requests.messages_api.schemas import MessageRequest
from scheduler_svc.frontend.requests.schemas import GenerationRequest
from scheduler_svc.frontend.text.sampling_defaults import SamplingDefaults
from tests import ROOT

NAMES = [parameter.name for parameter in SAMPLING_COLUMNS.values()]
NOT_DRAWN_WITH = {"max_tokens", "stop_token_ids"}  # they say where a sequence ends
NOT_COLUMNS = {
    "logprobs",
    "prompt_logprobs",
    "constraints",
    "pooling",
    "pooled_token_ids",
}  # of the rows that want some
CONSTRAINTS = ["presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens"]
# A value of each that turns it on. The seed's own is drawn for requests that have none.
TRIALS = {parameter.name: parameter.trial for parameter in SAMPLING_COLUMNS.values()} | {"seed": 77}
DERIVED = {"seeds": "uniforms"}  # staging turns a seed and a position into a uniform
LIMITS = ExecutorLimits(
    num_blocks=8, block_size=4, max_num_seqs=4, max_batch_tokens=8, max_model_len=20, vocab_size=10, hidden_size=4
)


def test_every_parameter_is_in_the_table() -> None:
    assert set(NAMES) == set(m.SamplingParams.__struct_fields__) - NOT_DRAWN_WITH - NOT_COLUMNS


def test_plans_carry_the_columns_in_the_order_of_the_table() -> None:
    assert m.Plan.__struct_fields__[-len(SAMPLING_COLUMNS) :] == tuple(SAMPLING_COLUMNS)


@pytest.mark.parametrize("name", NAMES)
def test_clients_can_say_it(name: str) -> None:
    assert GenerationRequest.model_fields[name].default is None, "absent: what the model recommends"
    command = click.command()(sampling_options(default_max_tokens=None)(lambda sampling: None))
    assert name in {parameter.name for parameter in command.params}
    assert f"`{name}`" in (ROOT / "docs" / "api.md").read_text()
    assert f"`{name}`" in (ROOT / "docs" / "protocol.md").read_text()


def test_what_a_model_recommends_is_a_parameter() -> None:
    recommended = msgspec.structs.asdict(SamplingDefaults())
    constraint = recommended.pop("repetition_penalty")
    assert constraint == m.Constraints().repetition_penalty, "off"
    assert recommended.keys() | {"seed"} == set(NAMES)
    off = {parameter.name: parameter.off for parameter in SAMPLING_COLUMNS.values()}
    assert recommended == {name: 1.0 if name == "temperature" else off[name] for name in recommended}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_clients_can_say_constraints(name: str) -> None:
    assert name in m.Constraints.__struct_fields__
    assert name in GenerationRequest.model_fields
    command = click.command()(sampling_options(default_max_tokens=None)(lambda sampling: None))
    assert name in {parameter.name for parameter in command.params}
    assert f"`{name}`" in (ROOT / "docs" / "api.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_restart_keeps_it(name: str) -> None:
    """The request that is read from the journal is the one that was written."""
    submit = m.Submit(request_id="a-0", prompt=b"", params=m.SamplingParams(max_tokens=4, **{name: TRIALS[name]}))
    written = msgspec.msgpack.encode(SubmitRecord.of(submit))
    assert msgspec.msgpack.decode(written, type=SubmitRecord).message() == submit


@pytest.mark.parametrize("name", NAMES)
def test_a_message_of_anthropics_api_is_a_chat_that_has_it(name: str) -> None:
    turns = [{"role": "user", "content": "Hi"}]
    body = MessageRequest(model="model", max_tokens=4, messages=turns, **{name: TRIALS[name]})
    assert getattr(chat_request(body, "msg_1", ChatStyle()), name) == TRIALS[name]


@pytest.mark.parametrize("name", [*NAMES, *CONSTRAINTS])
def test_the_page_has_a_control_of_it_among_its_kind(name: str) -> None:
    offered = page_about.parameters(SimpleNamespace(sampling_defaults=SamplingDefaults()), ChatStyle())
    assert name in {parameter.name for parameter in offered}
    source = (ROOT / "scheduler_svc" / "frontend" / "page" / "files" / "talk" / "parameters.js").read_text()
    groups = re.search(r"const GROUPS = (\[.*?\n\]);", source, re.DOTALL)
    assert groups is not None
    assert f'"{name}"' in groups[1]


def test_all_samplers_take_the_same_inputs() -> None:
    columns = [DERIVED.get(name, name) for name in SAMPLING_COLUMNS]
    assert [*INPUT_DTYPES] == [*columns, "lanes"]
    triton = list(inspect.signature(choose_kernel.jitted.fn).parameters)
    first = triton.index(columns[0])
    assert triton[first : first + len(INPUT_DTYPES)] == [*INPUT_DTYPES]
    source = (ROOT / "kernels" / "cpu" / "csrc" / "sampling.cpp").read_text()
    struct = re.search(r"struct SamplingInputs \{(.*?)\};", source, re.DOTALL)
    assert struct
    fields = re.findall(r"const (\w+)\* (\w+);", struct[1])
    c_types = {torch.float32: "float", torch.int32: "int32_t"}
    assert fields == [(c_types[dtype], name) for name, dtype in INPUT_DTYPES.items()]


def test_values_go_from_a_request_to_the_sampler() -> None:
    """Through a lane, a plan, the wire's check, the channel between ranks, padding and staging."""
    params = [m.SamplingParams(max_tokens=4), m.SamplingParams(max_tokens=4, **TRIALS)]
    executor_lanes = Lanes(4)
    prompt = np.array([1, 2], np.int32)
    sequences = [
        *new_sequences(m.Submit(request_id="a-0", prompt=b"", params=params[0]), prompt, 1, 0, None),
        new_sequences(m.Submit(request_id="b-0", prompt=b"", params=params[1], n=2), prompt, 1, 1, None)[1],
    ]
    lanes = np.array([executor_lanes.enter(sequence, BlockTable()) for sequence in sequences], np.int32)
    trial = trial_plan([1, 1], LIMITS.block_size)
    kept = {name: column for name, column in vars(trial).items() if name in m.Plan.__struct_fields__}
    columns = {name: column.tobytes() for name, column in kept.items() if isinstance(column, np.ndarray)}
    plan = m.Plan(epoch=1, step=0, **join_columns([columns], [sampling_columns(lanes, executor_lanes)], [len(lanes)]))
    arrived = unpack(pack(parse_plan(plan, LIMITS)))

    class NoAttention:
        def plan(self, columns: object, *, fixed: bool) -> tuple[list[np.ndarray], object]:
            return [], list

    arena = Arena(arena_size(LIMITS, []), torch.device("cpu"))
    padded = pad_decode(arrived, 3, lane=4, block=8, block_size=4)
    inputs = stage(padded, arena, NoAttention(), fixed=True).sampling
    assert {name: column.dtype for name, column in vars(inputs).items()} == INPUT_DTYPES
    for name, parameter in SAMPLING_COLUMNS.items():
        if name not in DERIVED:
            expected = torch.tensor([parameter.off, parameter.trial, parameter.off], dtype=INPUT_DTYPES[name])
            assert getattr(inputs, name).equal(expected), name
    assert arrived.sampling is not None
    assert arrived.sampling.seeds.tolist() == [0, 77 + 1], "a seed of each sequence"


@pytest.mark.parametrize("name", [name for name, parameter in SAMPLING_COLUMNS.items() if name not in DERIVED])
def test_the_reference_obeys_it(name: str) -> None:
    """Some uniform draws another token with the parameter on than with it off."""
    rows = 400
    sampling = {each: torch.from_numpy(column) for each, column in vars(SamplingColumns.greedy(rows)).items()}
    on, off = (
        torch.full((rows,), float(value)) for value in (SAMPLING_COLUMNS[name].trial, SAMPLING_COLUMNS[name].off)
    )
    tokens = []
    for column in (on, off):
        chosen = {**sampling, "temperatures": torch.ones(rows), name: column, "uniforms": torch.arange(rows) / rows}
        inputs = SamplingInputs(
            *(chosen[each].to(INPUT_DTYPES[each]) for each in INPUT_DTYPES if each != "lanes"), lanes=torch.arange(rows)
        )
        out, last_tokens = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64)
        reference.sample(torch.linspace(-3, 3, 9).expand(rows, -1), inputs, last_tokens, out)
        tokens.append(out)
    assert not tokens[0].equal(tokens[1])
