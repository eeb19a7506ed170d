"""Chats through their steps, where nothing else waits for them."""

from typing import Any

from scheduler_svc.frontend.requests.chat_steps import ChatSteps, Result
from scheduler_svc.frontend.text.tokenizer import Tokenizer


def finished(steps: ChatSteps[Result], tokenizer: Tokenizer) -> Result:
    """What a chat becomes."""
    text: Any = None
    while True:
        try:
            conversation = steps.send(text)
        except StopIteration as stop:
            return stop.value
        text = tokenizer.render_chat(*conversation)
