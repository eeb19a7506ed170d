"""Chat templates as they were published: rendered as transformers renders them, their turns' ends and calls known."""

import itertools
from pathlib import Path

import msgspec
import pytest

from common.gguf_tokenizer import tokenizer_config, tokenizer_json
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.parsing.detect import detect
from scheduler_svc.frontend.requests.chat_style import style_of
from scheduler_svc.frontend.requests.tools import Tool, ToolChoice, tool_use
from scheduler_svc.frontend.text.template_program import TemplateProgram
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend_options import FrontendOptions
from tests.support import llama_cpp

# Of each: its calls, the vocabulary that stands in for the model's, and what ends a turn of it.
PUBLISHED = {
    "meta-llama-Llama-3.1-8B-Instruct": ("json", "llama-bpe", "<|eot_id|>"),
    "meta-llama-Llama-3.2-3B-Instruct": ("json", "llama-bpe", "<|eot_id|>"),
    "meta-llama-Llama-3.3-70B-Instruct": ("json", "llama-bpe", "<|eot_id|>"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("none", "llama-spm", "</s>"),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", "qwen2", "<|im_end|>"),
    "Qwen-Qwen3-0.6B": ("hermes", "qwen2", "<|im_end|>"),
    "microsoft-Phi-3.5-mini-instruct": ("none", "phi-3", "<|end|>"),
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "description": "Größe < 3 & 'so'"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": 'in a "city"', "parameters": PARAMETERS}}]
SYSTEM = {"role": "system", "content": " You are <b>brief</b> & kind.\n"}
USER = {"role": "user", "content": "Grüße, 世界! 👩‍👩‍👧\n\n "}
ANSWER = {"role": "assistant", "content": "  It is 12.\n"}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "abcdefghi", "content": '{"degrees": 3}'}
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER, ANSWER, USER],
    [USER, CALLING, RESULT],
    [SYSTEM, USER, CALLING, RESULT, ANSWER, USER],
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_renders_as_in_transformers(name: str):
    from transformers.utils.chat_template_utils import render_jinja_template

    source = llama_cpp.template(name)
    program = TemplateProgram(source, SPECIAL)
    for messages, tools, is_ready in itertools.product(CONVERSATIONS, (None, TOOLS), (True, False)):
        [expected], _ = render_jinja_template(
            [messages], tools=tools, chat_template=source, add_generation_prompt=is_ready, **SPECIAL
        )
        assert program.render(messages, tools, {}, "answer" if is_ready else "message") == expected
    messages = [USER, ANSWER | {"content": "It is"}]
    [expected], _ = render_jinja_template([messages], chat_template=source, continue_final_message=True, **SPECIAL)
    assert program.render(messages, None, {}, "continued") == expected


def model(folder: Path, vocabulary: str, template: str) -> Tokenizer:
    """A model that has another template of its own."""
    metadata = llama_cpp.vocabulary(vocabulary) | {"tokenizer.chat_template": "{{ messages[0].content }}"}
    (folder / "tokenizer.json").write_bytes(msgspec.json.encode(tokenizer_json(metadata)))
    (folder / "tokenizer_config.json").write_bytes(msgspec.json.encode(tokenizer_config(metadata)))
    (folder / "chat_template.jinja").write_text("{{ messages | length }}")
    chosen = folder / "chosen"
    chosen.write_text(template)
    return Tokenizer(folder, chosen)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * any(n in name for n in ("3.2", "3.3", "Qwen3")))
        for name in PUBLISHED
    ],
)
def test_what_ends_a_turn_and_how_calls_are_written(tmp_path: Path, name: str):
    calls, vocabulary, end = PUBLISHED[name]
    tokenizer = model(tmp_path, vocabulary, llama_cpp.template(name))
    tokenizer.start_rendering()
    assert tokenizer.special_tokens[end] in tokenizer.chat_eos_token_ids
    assert set(tokenizer.chat_eos_token_ids) == {*tokenizer.eos_token_ids, tokenizer.special_tokens[end]}
    assert detect(tokenizer.chat_template.source).calls == calls
    style = style_of(tokenizer.chat_template, FrontendOptions())
    tools = [Tool.model_validate(tool) for tool in TOOLS]
    if calls != "none":
        assert tool_use(tools, None, parallel=True, style=style).calls == calls
        return
    reason = (
        r"calls after \[TOOL_CALLS\], which is not read yet" if "Mistral" in name else "its chat template shows none"
    )
    with pytest.raises(ApiError, match=f"'tools' are not supported with this model: .*{reason}") as refused:
        tool_use(tools, None, parallel=True, style=style)
    assert refused.value.status == 400
    assert tool_use(tools, ToolChoice("none"), parallel=True, style=style).shown is None


@pytest.mark.parametrize("vocabulary", ["llama-bpe", "llama-spm"])
def test_a_chat_has_one_bos(tmp_path: Path, vocabulary: str):
    """That of its template, though the tokenizer puts one before each text: also where a client has rendered it."""
    tokenizer = model(tmp_path, vocabulary, "{{ bos_token }}{{ messages[0].content }}")
    text = tokenizer.render_chat([{"role": "user", "content": "Hello"}], None, {})
    [plain] = tokenizer.encode(["Hello"], add_special_tokens=True)
    assert tokenizer.encode([text], add_special_tokens=False) == [plain]
    assert tokenizer.encode([text], add_special_tokens=True) == [plain]
    assert plain.count(tokenizer.opening_id) == 1
