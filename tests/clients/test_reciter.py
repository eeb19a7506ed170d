"""The stand-in for Qwen3 says what it should: its weights, run by the real executor."""

from typing import Any

import pytest
import tokenizers

from scheduler_svc.frontend.text.tokenizer import Tokenizer
from tests.executor_svc.harness import start
from tests.support.in_process import serve, submit
from tests.support.reciter.answers import ANSWERS, END, OSLO, WITHOUT_WORD, Answer, call
from tests.support.reciter.checkpoint import reciter_folder
from tests.support.reciter.states import all_states
from tests.support.reciter.weights import MAX_POSITIONS

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]
RESULT = [
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get_weather", "arguments": {}}}]},
    {"role": "tool", "content": "18"},
]
EOS = 151_645
Case = tuple[str, str, str]  # a name, a prompt, what should come


@pytest.fixture(scope="module")
def folder():
    return reciter_folder()


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def plain_tokenizer(folder):
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_the_tokenizer_is_qwens(plain_tokenizer):
    assert plain_tokenizer.encode("Hello, world!\n\nIt's 1234.").ids == [
        *(9707, 11, 1879, 2219, 2132, 594, 220, 16, 17, 18, 19, 13)
    ]
    assert plain_tokenizer.encode("<|im_start|><think></tool_call>").ids == [151644, 151667, 151658]
    text = "naïve 東京 🐟  \r\n\tx"
    assert plain_tokenizer.decode(plain_tokenizer.encode(text).ids) == text


def expected(answer: Answer, *, tools: bool, result: bool, thinking: bool) -> str:
    text = answer.plain
    if tools:
        text = answer.tools or text
    if result:
        text = answer.result or answer.plain
    return text if thinking else text.partition("</think>\n\n")[2] or text


def cases_of(tokenizer: Tokenizer, answer: Answer, *, before: list[dict[str, Any]] = []) -> list[Case]:  # noqa: B006
    found = []
    for tools, result, thinking in (
        (False, False, True),
        (True, False, False),
        (True, True, True),
        (True, False, True),
    ):
        messages = [*before, {"role": "user", "content": answer.prompt}]
        if result and not answer.word:
            continue
        prompt = tokenizer.render_chat(
            messages + RESULT * result, TOOLS if tools else None, {} if thinking else {"enable_thinking": False}
        )
        text = expected(answer, tools=tools, result=result, thinking=thinking)
        found.append((f"{answer.prompt} tools={tools} result={result} thinking={thinking}", prompt, text))
    return found


def recite(folder, tokenizer, plain_tokenizer, cases: list[Case], num_blocks: int = 1024) -> None:
    """Ask for all cases at once, every other one at temperature 1."""
    prompts = tokenizer.encode([prompt for _, prompt, _ in cases], add_special_tokens=False)
    hot = {"temperature": 1.0, "top_p": 0.95, "seed": 1}
    submits = [
        submit(name, prompt, 400, stop_token_ids=(EOS,), **(hot if index % 2 else {}))
        for index, ((name, _, _), prompt) in enumerate(zip(cases, prompts, strict=True))
    ]
    answers = serve([start(folder, num_blocks=num_blocks)], submits)
    for name, _, text in cases:
        said = plain_tokenizer.decode(answers[name, 0].tokens, skip_special_tokens=False)
        assert said == text + END, name


@pytest.mark.slow
def test_it_recites(folder, tokenizer, plain_tokenizer):
    """Short answers; the long ones are recited by the services (`test_openai.py`)."""
    before = [{"role": "user", "content": "Tell me of the harbor."}, {"role": "assistant", "content": "No."}]
    answers = [answer for answer in (*ANSWERS, WITHOUT_WORD) if answer.word not in (" harbor", " ledger")]
    cases = [case for each in answers for case in cases_of(tokenizer, each, before=before if each.word else [])]
    assert len(cases) > 30
    recite(folder, tokenizer, plain_tokenizer, cases[::4])


@pytest.mark.slow
def test_it_recites_everything_and_after_long_prompts(folder, tokenizer, plain_tokenizer):
    cases = [case for each in (*ANSWERS, WITHOUT_WORD) for case in cases_of(tokenizer, each)]
    long = "The sea is wide. " * (MAX_POSITIONS // 8)
    cases += [
        (
            "long",
            tokenizer.render_chat([{"role": "user", "content": f"{ANSWERS[2].prompt} {long}"}], TOOLS, {}),
            ANSWERS[2].tools,
        )
    ]
    recite(folder, tokenizer, plain_tokenizer, cases, num_blocks=2048)


def test_an_answer_that_cannot_be_recited_is_refused(plain_tokenizer, monkeypatch):
    def states_of(plain: str):
        monkeypatch.setattr("tests.support.reciter.states.ANSWERS", (Answer(" whale", "", plain=plain),))
        return all_states(plain_tokenizer)

    assert states_of("one two three four five").first
    with pytest.raises(ValueError, match=r"do not tell what follows in .*la la la la"):
        states_of("la la la la la la")
    with pytest.raises(ValueError, match="has a word that chooses an answer"):
        states_of("It is a whale.")


def test_calls_are_written_as_qwen_writes_them():
    assert OSLO == '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert "名" in call("write", content="名")
