"""transformers probes for a package named `kernels`. Ours must not be mistaken for it, whichever comes first."""

import subprocess
import sys

import pytest

from tests import ROOT

SCRIPT = """
import sys
sys.path.insert(0, {root!r})
{first}
{second}
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import is_kernels_available
assert kernels.__file__.startswith({root!r}), kernels.__file__
model = Qwen3ForCausalLM(Qwen3Config(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=1, head_dim=8, pad_token_id=0))
print(is_kernels_available(), model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False).shape)
"""


@pytest.mark.slow
def test_transformers_generates_with_our_kernels_on_the_path() -> None:
    imports = ("import kernels.reference", "import transformers")
    for first, second in (imports, imports[::-1]):
        script = SCRIPT.format(root=str(ROOT), first=first, second=second)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["False", "torch.Size([1,", "7])"]


def test_kernels_imports_nothing_of_ours() -> None:
    script = (
        "import sys, kernels.reference; print([n for n in sys.modules if n.split('.')[0] in "
        "('common', 'executor_svc', 'scheduler_svc', 'transformers')])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
