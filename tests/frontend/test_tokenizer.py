"""The same ids as transformers gives, from the model's files alone."""

import asyncio
import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from common.errors import CheckpointError, RequestRejected
from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.text.long_work import WORTH_A_THREAD, LongWork
from scheduler_svc.frontend.text.tokenizer import SamplingDefaults, Tokenizer

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


def test_generation_config_knows_all_tokens_that_end_an_answer(tokenizer: Tokenizer, model_copy: Path):
    eos = json.loads((DEMO_MODEL_DIR / "generation_config.json").read_text())["eos_token_id"]
    assert list(tokenizer.eos_token_ids) == eos
    (model_copy / "generation_config.json").unlink()
    assert Tokenizer(model_copy).eos_token_ids == (
        json.loads((model_copy / "config.json").read_text())["eos_token_id"],
    )


def test_special_tokens_do_not_show(tokenizer: Tokenizer):
    assert not set(tokenizer.eos_token_ids) & tokenizer.token_bytes.keys()


def test_template_in_tokenizer_config(model_copy: Path):
    (model_copy / "chat_template.jinja").unlink()
    path = model_copy / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    with pytest.raises(RequestRejected, match="no chat template"):
        Tokenizer(model_copy).render_chat(CONVERSATION, None, {})
    role = "{{ messages[0].role }}"
    for template in (role, [{"name": "tool_use", "template": "x"}, {"name": "default", "template": role}]):
        path.write_text(json.dumps(settings | {"chat_template": template}))
        assert Tokenizer(model_copy).render_chat(CONVERSATION, None, {}) == "system"


def test_half_a_character_is_refused(tokenizer: Tokenizer):
    with pytest.raises(RequestRejected, match="not valid Unicode"):
        tokenizer.encode(["fine", "\ud83d"], add_special_tokens=False)


@pytest.mark.parametrize("broken", ["tokenizer.json", "config.json", "tokenizer_config.json"])
def test_broken_files_are_named(model_copy: Path, broken: str):
    (model_copy / broken).write_text("{")
    with pytest.raises(CheckpointError, match=broken):
        Tokenizer(model_copy)


def test_a_folder_without_a_tokenizer(tmp_path: Path):
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        Tokenizer(tmp_path)


async def _longest_pause_s(tokenizer: Tokenizer, text: str) -> float:
    """How long the event loop stood still while `text` was tokenized."""
    loop = asyncio.get_running_loop()
    encode = partial(tokenizer.encode, [text], add_special_tokens=False)
    work = asyncio.create_task(LongWork().run(len(text), encode))
    longest = 0.0
    while not work.done():
        before = loop.time()
        await asyncio.sleep(0.001)
        longest = max(longest, loop.time() - before)
    return longest


def test_long_texts_leave_the_event_loop_running(tokenizer: Tokenizer):
    text = "Hello world, this goes on. " * (4 * WORTH_A_THREAD)
    started = asyncio.run(_timed(tokenizer, text))
    pause_s = asyncio.run(_longest_pause_s(tokenizer, text))
    assert pause_s < started / 2


async def _timed(tokenizer: Tokenizer, text: str) -> float:
    loop = asyncio.get_running_loop()
    before = loop.time()
    tokenizer.encode([text], add_special_tokens=False)
    return loop.time() - before


def test_sampling_defaults_are_the_models_or_openais(tmp_path):
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(DEMO_MODEL_DIR / name, tmp_path)
    assert Tokenizer(tmp_path).sampling_defaults == SamplingDefaults(1.0, 1.0, 0, 0.0)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "min_p": null}')
    assert Tokenizer(tmp_path).sampling_defaults == SamplingDefaults(0.6, 1.0, 20, 0.0)
    (tmp_path / "generation_config.json").write_text('{"top_p": 7}')
    with pytest.raises(CheckpointError, match=r"generation_config.json recommends what cannot be done: .*top_p"):
        Tokenizer(tmp_path)
