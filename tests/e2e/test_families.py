"""An executor of every family is killed in the middle of an answer, and the answer goes on."""

import pytest

from tests.e2e.conftest import client_of
from tests.support.checkpoints import make_checkpoint
from tests.support.fleets import running_fleet

SHAPES = {
    "qwen2": {},
    "llama": {},
    "mistral": {"sliding_window": None},
    "phi3": {"partial_rotary_factor": 0.75, "pad_token_id": None},
}


@pytest.mark.slow
@pytest.mark.parametrize("family", SHAPES)
def test_sigkill_in_the_middle_of_a_stream(tmp_path, family):
    sizes = {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 128, "num_layers": 2}
    folder = make_checkpoint(tmp_path / family, family=family, preset="tiny", tokenizer=True, **sizes, **SHAPES[family])
    options = ("--dtype", "bfloat16")
    with running_fleet(tmp_path, model=folder, executor_options=options) as fleet:

        def stream(disturb=None):
            request = {"model": family, "prompt": "JULIET:\nO Romeo", "max_tokens": 120, "temperature": 0}
            chunks = client_of(fleet).completions.create(
                **request, stream=True, logprobs=1, extra_body={"ignore_eos": True}
            )
            tokens = []
            for chunk in chunks:
                for choice in chunk.choices:
                    tokens += zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True)
                if disturb is not None and len(tokens) >= 40:
                    disturb()
                    disturb = None
            return tokens

        undisturbed = stream()
        assert len(undisturbed) == 120

        def kill():
            fleet.kill_executor(0)
            fleet.start_executor(0)

        assert stream(kill) == undisturbed
