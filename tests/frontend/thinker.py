"""A frontend whose model has Qwen3's habits and the demo model's tokens, and what that model is told and says."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from common import messages as m
from tests.support.chat_templates import QWEN3_LIKE, model_with_template
from tests.support.demo_tokenizer import EOS, TOKENIZER, decoded, ids
from tests.support.fake_core import FakeCore, say, tokens_of
from tests.support.frontend_process import Frontend, running_frontend

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


@contextmanager
def running_thinker(
    folder: Path, *options: str, name: str = "m", template: str = QWEN3_LIKE, **environment: str
) -> Iterator[Frontend]:
    """A frontend of such a model, whose files are made in the folder.

    Args:
        name: of the model.
    """
    model = model_with_template(folder, template)
    with running_frontend("--model", str(model), "--served-model-name", name, *options, **environment) as frontend:
        yield frontend


def answering(core: FakeCore, text: str, reason: m.FinishReason = "stop", **how: float) -> None:
    """Have the model say a text from now on, and end it."""
    core.script = say([*ids(text), *([EOS] if reason == "stop" else [])], reason, **how)


def prompt_of(submit: m.Submit) -> str:
    """What the model is told."""
    return decoded(tokens_of(submit.prompt))


def accepts(submit: m.Submit, text: str) -> bool:
    """Whether the grammar of a request lets the model say just this."""
    assert submit.params.constraints is not None
    tokenizer = LLTokenizer(str(TOKENIZER.folder / "tokenizer.json"), eos_token=[EOS])
    matcher = LLMatcher(tokenizer, submit.params.constraints.grammar)
    return matcher.consume_tokens(ids(text)) and matcher.is_accepting()
