"""How tokens of a grammar's text are read; texts in steps are in `test_grammar_masks.py` and `test_late_masks.py`."""

import pytest

from executor_svc.runner.grammar_texts import Grammars, TokenReader
from tests.executor_svc.runner.grammar_lanes import TOKENIZER, VOCAB


@pytest.mark.parametrize("is_hard", [False, True])
def test_a_hard_token_is_read_as_any_other(is_hard: bool) -> None:
    grammars = Grammars(TOKENIZER, VOCAB)
    reader, matcher = TokenReader(grammars), grammars.compile(grammars.get('start: "ab" "a"'))
    a, b = (TOKENIZER.tokenize_str(letter)[0] for letter in "ab")
    assert [reader.read(matcher, token, is_hard=is_hard) for token in (a, b, b)] == [True, True, False]
