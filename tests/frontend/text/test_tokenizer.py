"""The same ids as transformers gives, from the model's files alone."""

import asyncio
import json
import math
import os
import shutil
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import ValidationError

from common.errors import CheckpointError, RequestRejected
from common.model_files import DEMO_MODEL_DIR
from common.model_reading import MAX_TEMPLATE_BYTES
from scheduler_svc.frontend.requests.schemas import CompletionRequest
from scheduler_svc.frontend.text.chat_template import MAX_SOURCE_CHARS
from scheduler_svc.frontend.text.long_work import WORTH_A_THREAD, LongWork
from scheduler_svc.frontend.text.sampling_defaults import SamplingDefaults
from scheduler_svc.frontend.text.tokenizer import MAX_GROWN_CHARS, Tokenizer
from tests.frontend.links import in_event_loop

CONVERSATION = [
    {"role": "system", "content": "You are <b>helpful</b> & kind."},
    {"role": "user", "content": "Grüße, 世界! 👩‍👩‍👧 What's 12345?\n\n\tYes"},
    {"role": "assistant", "content": "It is <|im_end|> a number."},
    {"role": "user", "content": "Once more"},
]


@pytest.fixture
def model_copy(tmp_path: Path) -> Path:
    """The demo model's folder without its weights, to be changed."""
    for path in DEMO_MODEL_DIR.iterdir():
        if path.suffix in (".json", ".jinja"):
            shutil.copy(path, tmp_path)
    return tmp_path


def test_chat_ids_are_those_of_transformers(tokenizer: Tokenizer):
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(DEMO_MODEL_DIR)
    for messages in (CONVERSATION, CONVERSATION[:2], CONVERSATION[1:]):
        expected = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        text = tokenizer.render_chat(messages, None, {})
        assert tokenizer.encode([text], add_special_tokens=False) == [expected]
    for message in CONVERSATION:
        assert (
            tokenizer.encode([message["content"]], add_special_tokens=True)[0]
            == reference(message["content"])["input_ids"]
        )


@pytest.mark.parametrize(
    ("said", "ends", "chat_ends"),
    [
        # What Qwen2.5's files say of a base model with a chat's template, and of one whose files agree on nothing.
        ({"generation_config": 2045}, ["<|endoftext|>"], ["<|endoftext|>", "<|im_end|>"]),
        ({"tokenizer_config": "<|im_end|>"}, ["<|im_end|>"], ["<|im_end|>"]),
        (
            {"generation_config": 2045, "tokenizer_config": {"content": "<|im_end|>"}},
            ["<|endoftext|>", "<|im_end|>"],
            ["<|endoftext|>", "<|im_end|>"],
        ),
        ({"generation_config": [5], "config": [6, 5]}, [5, 6], [5, 6, "<|im_end|>"]),
        ({}, [], ["<|im_end|>"]),
        ({"tokenizer_config": "no token"}, [], ["<|im_end|>"]),
    ],
)
def test_all_files_know_tokens_that_end_a_text(
    model_copy: Path, said: dict[str, object], ends: list[str | int], chat_ends: list[str | int]
):
    for name in ("generation_config", "config", "tokenizer_config"):
        path = model_copy / f"{name}.json"
        field = "eos_token" if name == "tokenizer_config" else "eos_token_id"
        path.write_text(json.dumps(json.loads(path.read_text()) | {field: said.get(name)}))
    tokenizer = Tokenizer(model_copy)
    ids = {i if isinstance(i, int) else tokenizer.special_tokens[i] for i in ends}
    assert set(tokenizer.eos_token_ids) == ids
    assert set(tokenizer.chat_eos_token_ids) == {
        i if isinstance(i, int) else tokenizer.special_tokens[i] for i in chat_ends
    }


@pytest.mark.parametrize(
    ("template", "end"),
    [
        ("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", "<|im_end|>"),
        ("{% for m in messages %}{{ m.content | trim }}<|im_start|>\n{% endfor %}", "<|im_start|>"),
        ("{% for m in messages %}{{ m.content }}\n<|im_end|>{% endfor %}", None),  # not directly
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}", None),  # plain text
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None),
        ("<|im_end|>", None),  # no answer in it
        ("{{ raise_exception('no') }}", None),
    ],
)
def test_a_chat_ends_at_the_special_token_after_an_answer(model_copy: Path, template: str, end: str | None):
    (model_copy / "chat_template.jinja").write_text(template)
    (model_copy / "generation_config.json").write_text('{"eos_token_id": 5}')
    (model_copy / "config.json").write_text("{}")
    (model_copy / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer(model_copy)
    tokenizer.start_rendering()
    assert tokenizer.eos_token_ids == (5,)
    assert tokenizer.chat_eos_token_ids == ((5,) if end is None else (5, tokenizer.special_tokens[end]))


def test_special_tokens_do_not_show(tokenizer: Tokenizer):
    assert not set(tokenizer.eos_token_ids) & tokenizer.token_bytes.keys()


def test_template_in_tokenizer_config(model_copy: Path):
    (model_copy / "chat_template.jinja").unlink()
    path = model_copy / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    with pytest.raises(RequestRejected, match=r"no chat template; use /v1/completions \(baton generate\)"):
        Tokenizer(model_copy).render_chat(CONVERSATION, None, {})
    role = "{{ messages[0].role }}"
    for template in (role, [{"name": "tool_use", "template": "x"}, {"name": "default", "template": role}]):
        path.write_text(json.dumps(settings | {"chat_template": template}))
        assert Tokenizer(model_copy).render_chat(CONVERSATION, None, {}) == "system"


def test_half_a_character_is_refused(tokenizer: Tokenizer):
    with pytest.raises(RequestRejected, match="not valid Unicode"):
        tokenizer.encode(["fine", "\ud83d"], add_special_tokens=False)


FILES = ["tokenizer.json", "config.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"]


@pytest.mark.parametrize("broken", FILES[:-1])
def test_broken_files_are_named(model_copy: Path, broken: str):
    (model_copy / broken).write_text("{")
    with pytest.raises(CheckpointError, match=broken):
        Tokenizer(model_copy)


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(model_copy: Path, name: str):
    (model_copy / name).unlink()
    os.mkfifo(model_copy / name)
    with pytest.raises(CheckpointError, match=rf"{name} is no regular file, but a pipe"):
        Tokenizer(model_copy)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("config.json", '{"vocab_size": 2147483648}', "has vocab_size 2147483648, allowed are 1 to 1048576"),
        ("config.json", '{"hidden_size": 1e10}', "hidden_size"),
        ("config.json", '{"hidden_size": 2.5}', "hidden_size"),
        ("config.json", '{"eos_token_id": -1}', "eos_token_id"),
        ("generation_config.json", '{"eos_token_id": [4294967296]}', r"has eos_token_id \[4294967296\]"),
        ("tokenizer_config.json", "[" * 200_000, "is nested too deeply"),
        ("chat_template.jinja", "x" * (MAX_SOURCE_CHARS + 1), f"the limit is {MAX_SOURCE_CHARS}"),
        ("chat_template.jinja", "x" * (MAX_TEMPLATE_BYTES + 1), f"the limit is {MAX_TEMPLATE_BYTES}"),
    ],
)
def test_what_no_model_says_is_refused(model_copy: Path, name: str, content: str, fault: str):
    (model_copy / name).write_text(content)
    with pytest.raises(CheckpointError, match=fault):
        Tokenizer(model_copy)


def with_tokenizer(folder: Path, **changes: object) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def split_by(pattern: str) -> dict:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level]}


@pytest.mark.parametrize(("pattern", "fault"), [("(", "cannot be read"), ("(a+)+$", "fails on this text: Onig")])
def test_an_expression_that_fails_is_the_models_fault(model_copy: Path, pattern: str, fault: str):
    """The second one fails where a text has many of one character, which the library calls no exception."""
    with pytest.raises(CheckpointError, match=rf"tokenizer\.json .*{fault}"):
        Tokenizer(with_tokenizer(model_copy, pre_tokenizer=split_by(pattern)))


def test_an_expression_that_fails_on_a_text_refuses_that_text(model_copy: Path):
    tokenizer = Tokenizer(with_tokenizer(model_copy, pre_tokenizer=split_by("(é+)+$")))
    for _ in range(2):
        with pytest.raises(RequestRejected, match="the model's tokenizer fails on this text: Onig") as refused:
            tokenizer.encode(["é" * 64 + "!"], add_special_tokens=False)
        assert refused.value.code == "invalid_value"
    assert tokenizer.encode(["fine"], add_special_tokens=False)[0]


def test_a_text_that_a_tokenizer_would_make_too_long_is_refused(model_copy: Path):
    normalizer = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 16}
    tokenizer = Tokenizer(with_tokenizer(model_copy, normalizer=normalizer))
    assert len(tokenizer.encode(["aa"], add_special_tokens=False)[0]) > 2
    with pytest.raises(RequestRejected, match=f"can make 16 times as many; the limit is {MAX_GROWN_CHARS}"):
        tokenizer.encode(["a" * (MAX_GROWN_CHARS // 16 + 1)], add_special_tokens=False)


def test_a_folder_without_a_tokenizer(tmp_path: Path):
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        Tokenizer(tmp_path)


@in_event_loop
async def test_long_texts_leave_the_event_loop_running(tokenizer: Tokenizer):
    """The loop has its turns while one call of the library tokenizes; it would have none if that held the GIL."""
    text = "Hello world, this goes on. " * (8 * WORTH_A_THREAD)
    encode = partial(tokenizer.encode, [text], add_special_tokens=False)
    work = asyncio.create_task(LongWork().run("", len(text), encode))
    turns = [time.monotonic()]
    while not work.done():
        await asyncio.sleep(0.001)
        turns.append(time.monotonic())
    assert max(later - earlier for earlier, later in pairwise(turns)) < (turns[-1] - turns[0]) / 2


def test_sampling_defaults_are_the_models_or_openais(tmp_path):
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(DEMO_MODEL_DIR / name, tmp_path)
    assert Tokenizer(tmp_path).sampling_defaults == SamplingDefaults(1.0, 1.0, 0, 0.0, 1.0)
    (tmp_path / "generation_config.json").write_text(
        '{"temperature": 0.6, "top_k": 20, "min_p": null, "repetition_penalty": 1.05}'
    )
    assert Tokenizer(tmp_path).sampling_defaults == SamplingDefaults(0.6, 1.0, 20, 0.0, 1.05)
    chosen = {"temperature": 0.2, "min_p": 0.05, "top_k": None}
    assert Tokenizer(tmp_path, sampling=chosen).sampling_defaults == SamplingDefaults(0.2, 1.0, 0, 0.05, 1.05)


RECOMMENDED = {
    "temperature": [0, 0.0, 0.6, 1, 2.0, 2.5, -0.1, True, "0.6", math.nan, math.inf],
    "top_p": [0, 0.0, 0.001, 0.9, 1, 1.0, 1.0001, -1, False, "1", math.nan],
    "top_k": [-2, -1, -1.0, 0, 20, 20.0, 20.5, 2**31 - 1, 2**31, True, "20", math.nan, math.inf],
    "min_p": [-0.1, 0, 0.05, 1.0, 1.1, True, "0"],
    "repetition_penalty": [0, 0.009, 0.01, 1.05, 100, 100.5, -1, True, "1.1", math.nan],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in RECOMMENDED.items() for value in values], ids=str
)
def test_what_a_model_recommends_is_checked_as_a_request_is(model_copy: Path, name: str, value: object):
    """A whole number may be written as a float in a file. What is refused names the file and the key."""
    (model_copy / "generation_config.json").write_text(json.dumps({name: value}))
    asked = int(value) if name == "top_k" and value in (-1.0, 20.0) else value
    try:
        body = CompletionRequest.model_validate({"model": "m", "prompt": "x", name: asked})
    except ValidationError:
        with pytest.raises(CheckpointError, match=rf"generation_config\.json recommends {name} "):
            Tokenizer(model_copy)
    else:
        assert getattr(Tokenizer(model_copy).sampling_defaults, name) == getattr(body, name)
