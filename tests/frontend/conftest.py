"""One frontend process for all tests that need nothing special of it; a module that does has a `shared_frontend`."""

from collections.abc import Iterator

import openai
import pytest

from scheduler_svc.frontend.text.tokenizer import Tokenizer
from tests.support.demo_tokenizer import TOKENIZER
from tests.support.fake_core import FakeCore
from tests.support.frontend_process import Frontend, running_frontend


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return TOKENIZER


@pytest.fixture(scope="session")
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
