"""Embeddings and reranking by both real services: a model that generates and embeds, and another that scores."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
import torch

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.client.processes.local_fleet import LocalFleet
from scheduler_svc.frontend.requests.score_prompt import INSTRUCTION, PAIR, SYSTEM
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from tests import ROOT
from tests.e2e.conftest import API_KEY, client_of
from tests.support.checkpoints import reference_logits, reference_model
from tests.support.eventually import eventually
from tests.support.fleets import running_fleet
from tests.support.pooling_folders import make_reranker

TEXTS = ["ROMEO:\nBut, soft!", "What light through yonder window breaks?", "ROMEO:\nBut, soft!"]
HEADERS = {"authorization": f"Bearer {API_KEY}"}


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, with a tokenizer that has "yes"."""
    folder = make_reranker(tmp_path_factory.mktemp("models") / "judge")
    shutil.copy(DEMO_MODEL_DIR / "model.safetensors", folder)
    return folder


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, judge: Path) -> Iterator[LocalFleet]:
    options = ("--api-key", API_KEY, "--pooling-model", f"score={judge}")
    tasks = ("--task", "generate", "--task", "embed")
    logs = tmp_path_factory.mktemp("logs")
    with running_fleet(logs, scheduler_options=options, executor_options=tasks) as running:
        scheduler = f"tcp://127.0.0.1:{running.spec.executor_port}"
        command = [sys.executable, "-m", "executor_svc", "--scheduler", scheduler, "--model", str(judge), "--no-keep"]
        more = (
            "--task",
            "score",
            "--dtype",
            "float32",
            "--num-blocks",
            "256",
            "--threads",
            "1",
            "--log-level",
            "error",
        )
        scorer = subprocess.Popen([*command, *more], cwd=ROOT)
        try:
            eventually(lambda: cards(running)["judge"] is not None, 60)
            yield running
        finally:
            scorer.kill()
            scorer.wait()


def cards(fleet: LocalFleet) -> dict[str, int | None]:
    listed = httpx.get(f"{fleet.spec.url}/v1/models", headers=HEADERS).json()["data"]
    return {card["id"]: card["max_model_len"] for card in listed}


def ids(folder: Path, text: str) -> list[int]:
    return Tokenizer(folder).encode([text], add_special_tokens=False)[0]


def test_embeddings_are_those_of_transformers(client: openai.OpenAI):
    answer = client.embeddings.create(model="baton-demo", input=TEXTS, dimensions=100)
    model = reference_model(DEMO_MODEL_DIR).model
    for entry, text in zip(answer.data, TEXTS, strict=True):
        with torch.inference_mode():
            state = model(torch.tensor([ids(DEMO_MODEL_DIR, text)])).last_hidden_state[0, -1, :100]
        assert np.allclose(entry.embedding, torch.nn.functional.normalize(state, dim=0).numpy(), atol=1e-5)
    assert answer.usage.prompt_tokens == sum(len(ids(DEMO_MODEL_DIR, text)) for text in TEXTS)


def test_a_ranking_is_that_of_transformers(fleet: LocalFleet, judge: Path):
    body = {"model": "judge", "query": "Who speaks?", "documents": TEXTS[:2]}
    results = httpx.post(f"{fleet.spec.url}/v1/rerank", json=body, headers=HEADERS, timeout=60).json()["results"]
    tokenizer = Tokenizer(judge)
    answers = [*ids(judge, "no"), *ids(judge, "yes")]
    wanted = []
    for text in TEXTS[:2]:
        pair = PAIR.format(INSTRUCTION, "Who speaks?", text)
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": pair}]
        prompt = ids(judge, tokenizer.render_chat(messages, None, {}))
        wanted.append(reference_logits(DEMO_MODEL_DIR, prompt)[-1, answers].softmax(0)[1].item())
    assert [entry["index"] for entry in results] == sorted((0, 1), key=lambda i: -wanted[i])
    assert [entry["relevance_score"] for entry in results] == pytest.approx(sorted(wanted, reverse=True), abs=1e-5)


def test_the_same_service_generates(fleet: LocalFleet):
    answer = client_of(fleet).completions.create(model="baton-demo", prompt="ROMEO:", max_tokens=3)
    assert answer.usage.completion_tokens == 3
