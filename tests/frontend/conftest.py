"""One frontend process for the tests of a module that need nothing special of it."""

from collections.abc import Iterator

import openai
import pytest

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from tests.support.fake_core import FakeCore
from tests.support.frontend_process import Frontend, running_frontend


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(DEMO_MODEL_DIR)


@pytest.fixture(scope="module")
def shared_frontend() -> Iterator[Frontend]:
    with running_frontend() as frontend:
        yield frontend


@pytest.fixture
def frontend(shared_frontend: Frontend) -> Frontend:
    shared_frontend.core.forget()
    return shared_frontend


@pytest.fixture
def core(frontend: Frontend) -> FakeCore:
    return frontend.core


@pytest.fixture
def client(frontend: Frontend) -> Iterator[openai.OpenAI]:
    with frontend.client() as client:
        yield client
