"""The benchmark of forced tokens: groups are whole documents, and what a grammar leaves open is never forced."""

import pytest
from llguidance import LLTokenizer

from benchmarks.constraints.forced_tokens import STYLES, documents, grouped
from common.model_files import DEMO_MODEL_DIR
from tests.benchmarks.running import lines


@pytest.fixture(scope="module")
def tokenizer():
    return LLTokenizer(str(DEMO_MODEL_DIR / "tokenizer.json"))


def test_groups_are_whole_documents_and_fixed_separators_force_more(tokenizer):
    shares = {}
    for style, (overrides, separators) in STYLES.items():
        texts = documents(5, separators)
        groups = [grouped(text, overrides, tokenizer) for text in texts]
        assert [sum(group) for group in groups] == [len(tokenizer.tokenize_str(text)) for text in texts]
        shares[style] = 1 - sum(map(len, groups)) / sum(map(sum, groups))
    assert 0 < shares["free"] < shares["compact"] < shares["spaced"] < 1


def test_a_document_that_does_not_match_is_an_error(tokenizer):
    (text,) = documents(1, (", ", ": "))
    with pytest.raises(RuntimeError, match="the grammar refuses"):
        grouped(text, STYLES["compact"][0], tokenizer)


@pytest.mark.slow
def test_the_benchmark():
    options = ("--rows", 2, "--style", "free", "--style", "compact")
    found = lines("bench_forced_tokens.py", "--model", "tiny", "--repeats", 2, *options)
    assert [line["style"] for line in found] == ["free", "compact"]
    assert all(line["rows"] == 2 and line["ratio"] > 0 and 0 < line["share"] < 1 for line in found)
