"""The demo model in the tree is small, loads as any Hugging Face model does, and has learnt its text."""

import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[executor]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install '.[dev]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from safetensors import safe_open  # noqa: E402

from tests.support.effort import examples  # noqa: E402

FOLDER = Path(__file__).resolve().parent.parent / "common" / "demo_model"

# From the held-out last tenth of tinyshakespeare (The Taming of the Shrew, V.2): training never saw it.
HELD_OUT = """\
PETRUCHIO:
Nay, that you shall not: since you have begun,
Have at you for a bitter jest or two!

BIANCA:
Am I your bird? I mean to shift my bush;
And then pursue me as you draw your bow.
You are welcome all.

PETRUCHIO:
She hath prevented me. Here, Signior Tranio.
This bird you aim'd at, though you hit her not;
Therefore a health to all that shot and miss'd.

TRANIO:
O, sir, Lucentio slipp'd me like his greyhound,
Which runs himself and catches for his master.

PETRUCHIO:
A good swift simile, but something currish.

TRANIO:
'Tis well, sir, that you hunted for yourself:
'Tis thought your deer does hold you at a bay.

BAPTISTA:
O ho, Petruchio! Tranio hits you now.

LUCENTIO:
I thank thee for that gird, good Tranio.

HORTENSIO:
Confess, confess, hath he not hit you here?

PETRUCHIO:
A' has a little gall'd me, I confess;
And, as the jest did glance away from me,
'Tis ten to one it maim'd you two outright.
"""
MAX_NATS_PER_BYTE = 1.6  # as trained: 1.38; noise: above 2.6


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    return transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def nats_per_byte(model, token_ids, text):
    with torch.inference_mode():
        mean = model(input_ids=torch.tensor([token_ids]), labels=torch.tensor([token_ids])).loss.item()
    return mean * (len(token_ids) - 1) / len(text.encode())


def test_is_small():
    weights = FOLDER / "model.safetensors"
    assert weights.stat().st_size <= 16 * 2**20
    with safe_open(weights, "pt") as tensors:
        names = list(tensors.keys())
        assert sum(math.prod(tensors.get_slice(name).get_shape()) for name in names) <= 8_000_000
        assert {tensors.get_slice(name).get_dtype() for name in names} == {"BF16"}


def test_loads_every_tensor_and_no_other():
    model, info = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, output_loading_info=True)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.dtype == torch.bfloat16
    assert not any(info.values()), info


def test_shape_suits_the_kernels(model):
    config = model.config
    assert config.head_dim in (64, 128)
    assert config.num_attention_heads % config.num_key_value_heads == 0
    assert config.tie_word_embeddings
    assert config.max_position_embeddings == 2048


def test_vocabulary_fits_the_embedding(model, tokenizer):
    assert len(tokenizer) == model.config.vocab_size
    stops = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert model.generation_config.eos_token_id == stops


def test_has_learnt_text_it_never_saw(model, tokenizer):
    token_ids = tokenizer.encode(HELD_OUT)
    learnt = nats_per_byte(model, token_ids, HELD_OUT)
    torch.manual_seed(0)
    untrained = nats_per_byte(type(model)(model.config).eval(), token_ids, HELD_OUT)
    assert learnt < MAX_NATS_PER_BYTE < 0.8 * untrained


def test_context_lowers_the_loss(model, tokenizer):
    """Word frequencies alone would pass the bound above by less: shuffled words must cost clearly more."""
    words = HELD_OUT.split(" ")
    shuffled = " ".join(words[i] for i in torch.randperm(len(words), generator=torch.Generator().manual_seed(0)))
    in_order = nats_per_byte(model, tokenizer.encode(HELD_OUT), HELD_OUT)
    assert in_order + 0.2 < nats_per_byte(model, tokenizer.encode(shuffled), shuffled)


@pytest.mark.slow
@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Wilt thou go with me to the king?"}],
        [
            {"role": "system", "content": "You are ROMEO."},
            {"role": "user", "content": "Good morrow, cousin."},
        ],
    ],
)
def test_a_chat_ends_by_itself(model, tokenizer, messages):
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer([prompt] * 8, return_tensors="pt")
    torch.manual_seed(0)
    answers = model.generate(**inputs, max_new_tokens=160)[:, inputs["input_ids"].shape[1] :].tolist()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert sum(end in answer for answer in answers) >= 5
    assert all(answer[0] != end for answer in answers)


@pytest.mark.slow
def test_a_play_goes_on_as_a_play(model, tokenizer):
    inputs = tokenizer("ROMEO:", return_tensors="pt")
    torch.manual_seed(0)
    answer = tokenizer.decode(model.generate(**inputs, max_new_tokens=120)[0])
    assert "<|im_start|>" not in answer
    assert answer.startswith("ROMEO:\n")
    assert answer.count("\n") >= 4


@given(text=st.text())
@settings(max_examples=examples(200))
def test_any_string_round_trips(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    "text", ["naïve 日本語 🎭🇫🇷", "\0\x7f\ufffd\u200d", " \t\r\n\n  x  ", "e\u0301 é", "<|im_end|>\n"]
)
def test_these_strings_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chat_template_renders_chatml(tokenizer):
    messages = [{"role": "system", "content": "You are ROMEO."}, {"role": "user", "content": "Who's there?"}]
    turns = "<|im_start|>system\nYou are ROMEO.<|im_end|>\n<|im_start|>user\nWho's there?<|im_end|>\n"
    assert tokenizer.apply_chat_template(messages, tokenize=False) == turns
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == turns + "<|im_start|>assistant\n"
    specials = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert [token for token in tokenizer.encode(rendered) if token in specials] == [*specials, *specials, specials[0]]


def test_the_chat_template_shows_tools_and_calls(tokenizer):
    tools = [{"type": "function", "function": {"name": "send_letter", "parameters": {"type": "object"}}}]
    call = {"type": "function", "function": {"name": "send_letter", "arguments": {"to": "ROMEO"}}}
    messages = [{"role": "user", "content": "Write."}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    rendered = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    assert rendered.startswith("<|im_start|>system\nTools:\n" + json.dumps(tools[0]) + "\n")
    said = '<tool_call>\n{"name": "send_letter", "arguments": {"to": "ROMEO"}}\n</tool_call><|im_end|>\n'
    assert rendered.endswith("<|im_start|>assistant\n" + said)
