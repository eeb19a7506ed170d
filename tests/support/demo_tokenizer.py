"""The demo model's tokenizer, read once for all tests of a process."""

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer(DEMO_MODEL_DIR)
EOS = TOKENIZER.eos_token_ids[0]


def ids(text: str) -> list[int]:
    """Return the tokens of a text, without any that a tokenizer adds."""
    return TOKENIZER.encode([text], add_special_tokens=False)[0]
