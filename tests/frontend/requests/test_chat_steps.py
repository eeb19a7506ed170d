"""Chats whose rendering takes long hold up neither the event loop, nor threads for other work, nor other clients."""

import asyncio
import threading
from pathlib import Path

import pytest

from common.errors import RequestRejected
from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.requests.chat_steps import ChatRenderer, Conversation
from scheduler_svc.frontend.text.long_work import NUM_THREADS, WORTH_A_THREAD, LongWork
from tests.frontend.links import in_event_loop
from tests.support.chat_templates import model_with_template
from tests.support.frontend_process import running_frontend
from tests.support.plain_http import http


class Puppet:
    """In place of a tokenizer: renders what a test lets it."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = threading.Event()
        self.text = "text"

    def render_chat(self, messages: list, tools: object, variables: object, ending: object) -> str:
        self.begun.append(messages[0])
        assert self.may_end.wait(20)
        if messages == ["bad"]:
            raise RequestRejected("the model's chat template refuses this")
        return self.text


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


def steps(name: str):
    """A chat that becomes its text, and the thread that did the last step."""
    text = yield Conversation([name], None, {}, "answer")
    return text, threading.current_thread()


@in_event_loop
async def test_clients_take_turns(puppet: Puppet):
    chats = ChatRenderer(puppet, LongWork())
    asked = [("many 1", "many"), ("many 2", "many"), ("many 3", "many"), ("few 1", "few"), ("few 2", "few")]
    tasks = [asyncio.create_task(chats.finish(steps(name), 1, client)) for name, client in asked]
    while not puppet.begun:
        await asyncio.sleep(0.001)
    assert puppet.begun == ["many 1"], "one at a time"
    puppet.may_end.set()
    await asyncio.gather(*tasks)
    assert puppet.begun == ["many 1", "few 1", "many 2", "few 2", "many 3"]


@in_event_loop
async def test_while_one_is_rendered_everything_else_goes_on(puppet: Puppet):
    long_work = LongWork()
    chats = ChatRenderer(puppet, long_work)
    tasks = [asyncio.create_task(chats.finish(steps(f"{i}"), WORTH_A_THREAD + 1, f"{i}")) for i in range(8)]
    while not puppet.begun:
        await asyncio.sleep(0.001)
    done = await asyncio.gather(*(long_work.run("", WORTH_A_THREAD + 1, lambda: 1) for _ in range(2 * NUM_THREADS)))
    assert done == [1] * 2 * NUM_THREADS, "its threads are free"
    assert not any(task.done() for task in tasks)
    puppet.may_end.set()
    assert [text for text, _ in await asyncio.gather(*tasks)] == ["text"] * 8


@in_event_loop
async def test_what_a_template_makes_long_is_tokenized_in_a_thread(puppet: Puppet):
    puppet.may_end.set()
    chats = ChatRenderer(puppet, LongWork())
    _, thread = await chats.finish(steps("short"), 1, "")
    assert thread is threading.current_thread()
    puppet.text = "x" * (WORTH_A_THREAD + 1)
    _, thread = await chats.finish(steps("long"), 1, "")
    assert thread is not threading.current_thread()


@in_event_loop
async def test_one_that_is_refused_or_cancelled_leaves_the_turn_to_the_next(puppet: Puppet):
    chats = ChatRenderer(puppet, LongWork())
    cancelled = asyncio.create_task(chats.finish(steps("cancelled"), 1, "a"))
    while not puppet.begun:
        await asyncio.sleep(0.001)
    cancelled.cancel()
    puppet.may_end.set()
    with pytest.raises(RequestRejected, match="refuses this"):
        await chats.finish(steps("bad"), 1, "b")
    assert (await chats.finish(steps("good"), 1, "a"))[0] == "text"


def test_a_template_that_a_client_can_keep_busy_ends_its_request_alone(tmp_path: Path):
    """Or make large, through every endpoint that renders; and the stream of another goes on meanwhile."""
    source = (DEMO_MODEL_DIR / "chat_template.jinja").read_text()
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    large = "{{ 'x' * (messages | length) * 10**9 }}"
    costly = f"{{% if 'loop' in messages[0].content %}}{loop}{{% endif %}}"
    costly += f"{{% if 'large' in messages[0].content %}}{large}{{% endif %}}"
    model = model_with_template(tmp_path, f"{costly}{source}")
    loops, grows = ([{"role": "user", "content": content}] for content in ("loop", "large"))
    with running_frontend("--model", str(model), "--served-model-name", "m") as frontend:
        stream = frontend.client().completions.create(model="m", prompt="x", stream=True)
        for path, body, limit in (
            ("/v1/chat/completions", {"model": "m", "messages": loops}, "1 s"),
            ("/v1/chat/completions", {"model": "m", "messages": grows}, "384 MiB"),
            ("/v1/messages", {"model": "m", "messages": grows, "max_tokens": 1}, "384 MiB"),
            ("/v1/messages/count_tokens", {"model": "m", "messages": grows}, "384 MiB"),
            ("/v1/responses", {"model": "m", "input": "large"}, "384 MiB"),
            ("/tokenize", {"messages": grows}, "384 MiB"),
        ):
            answer = http.post(f"{frontend.url}{path}", json=body, timeout=60)
            assert answer.status_code == 400, (path, answer.text)
            assert f"the model's chat template takes more than {limit} for this conversation" in answer.text
        assert list(stream)
        honest = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert frontend.post("/v1/chat/completions", honest).status_code == 200
        assert "Traceback" not in frontend.log
