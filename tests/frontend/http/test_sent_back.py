"""What the service answers can be sent back, however the answer ended, also if the template walks through arguments."""

from collections.abc import Iterator

import anthropic
import pytest

from common import messages as m
from tests.frontend.thinker import prompt_of, running_thinker
from tests.support.chat_templates import QWEN3_LIKE
from tests.support.demo_tokenizer import ids
from tests.support.fake_core import FakeCore, say
from tests.support.frontend_process import Frontend

WRITTEN = "call.arguments if call.arguments is string else call.arguments | tojson"
WALKS = QWEN3_LIKE.replace(
    "{{- " + WRITTEN + " }}", "{%- for k, v in call.arguments|items %}{{ k }}={{ v }};{% endfor %}"
)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
USER = {"role": "user", "content": "Rain?"}
AGAIN = {"role": "user", "content": "Go on."}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "K\u00f6ln", "days": [1, 2]}}\n</tool_call>'
# Where an answer ends: in its thought, in a call's tag, name, arguments, and at a call's end.
ENDS = ["I look.", "<tool_", '{"name": "wea', '"arguments": {', '{"city', '"K\u00f6', "[1,", "]}", "}}\n</tool_call>"]
TEXT = f"<think>\nI look.\n</think>\n\n{CALL}"


@pytest.fixture(scope="module")
def shared_frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    assert WRITTEN not in WALKS
    store = str(tmp_path_factory.mktemp("store"))
    with running_thinker(tmp_path_factory.mktemp("model"), "--store", store, template=WALKS) as frontend:
        yield frontend


@pytest.fixture(params=ENDS)
def answer(request: pytest.FixtureRequest, core: FakeCore) -> str:
    """Make the core answer with the text up to an end."""
    text = TEXT[: TEXT.index(request.param) + len(request.param)]
    reason: m.FinishReason = "stop" if text == TEXT else "length"
    core.script = say(ids(text), reason)
    return text


def assert_told(core: FakeCore, answer: str) -> None:
    """The model was told of the call, as far as it came."""
    prompt = prompt_of(core.submits[-1])
    assert "Go on." in prompt
    assert ("<tool_call>" in prompt) == ("<tool_call>" in answer)
    assert ("city=K\u00f6" in prompt) == ('"K\u00f6' in answer)


def test_a_chats_message(answer: str, core: FakeCore, frontend: Frontend):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
    with frontend.client() as client:
        first = client.chat.completions.create(model="m", messages=[USER], tools=tools)
        said = first.choices[0].message.model_dump(exclude_none=True)
        client.chat.completions.create(model="m", messages=[USER, said, AGAIN], tools=tools)
    assert_told(core, answer)


@pytest.mark.parametrize("how", ["id", "items"])
def test_a_response(answer: str, how: str, core: FakeCore, frontend: Frontend):
    tools = [{"type": "function", "name": "weather", "parameters": CITY}]
    with frontend.client() as client:
        first = client.responses.create(model="m", input=[USER], tools=tools)
        if how == "id":
            client.responses.create(model="m", input=[AGAIN], tools=tools, previous_response_id=first.id)
        else:
            items = [item.model_dump(exclude_none=True) for item in first.output]
            client.responses.create(model="m", input=[USER, *items, AGAIN], tools=tools)
    assert_told(core, answer)


def test_a_message(answer: str, core: FakeCore, frontend: Frontend):
    asked = {"model": "m", "max_tokens": 100, "tools": [{"name": "weather", "input_schema": CITY}]}
    with anthropic.Anthropic(base_url=frontend.url, api_key="none", max_retries=0, timeout=20) as client:
        first = client.messages.create(messages=[USER], **asked)
        said = {"role": "assistant", "content": [block.model_dump() for block in first.content]}
        client.messages.create(messages=[USER, said, AGAIN] if first.content else [USER, AGAIN], **asked)
    prompt = prompt_of(core.submits[-1])
    assert "Go on." in prompt
    assert ("<tool_call>" in prompt) == ("<tool_call>" in answer)
