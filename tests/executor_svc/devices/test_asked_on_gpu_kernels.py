"""Requests with constraints and log-probabilities on the Triton kernels: the answers of the plain ones."""

import pytest

from tests.executor_svc.conftest import Make
from tests.executor_svc.constraint_cases import CASES, EVERYTHING
from tests.executor_svc.gpu_kernels import start_on_gpu_kernels
from tests.executor_svc.harness import start
from tests.executor_svc.recorded import OPTIONS
from tests.support.in_process import serve, submit


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(invalid value|divide by zero) encountered:RuntimeWarning")  # of logits left out
def test_answers_are_those_of_the_plain_kernels(checkpoint: Make) -> None:
    folder = checkpoint(preset="tiny", num_layers=1)
    requests = [
        submit("everything", range(10, 20), 6, n=2, temperature=1.0, seed=5, constraints=EVERYTHING, logprobs=4),
        submit("penalties", range(10, 20), 6, temperature=0.9, top_p=0.9, seed=1, constraints=CASES["penalties"]),
        submit("log-probabilities", range(10, 20), 6, logprobs=21),
        submit("greedy", range(10, 20), 6, constraints=CASES["biases"], logprobs=2),
    ]
    answers = serve([start_on_gpu_kernels(folder, [], [])], requests)
    for name, expected in serve([start(folder, **OPTIONS)], requests).items():
        assert answers[name].tokens == expected.tokens
        assert answers[name].logprob_ids == expected.logprob_ids
        assert answers[name].logprobs == pytest.approx(expected.logprobs, abs=1e-4)
