"""A process that works for a frontend, asked by several threads at once."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from scheduler_svc.frontend.text.chat_template import ChatTemplate


def test_each_thread_gets_the_answer_to_its_own_question():
    template = ChatTemplate("{{ messages[0].content }}", {})
    with ThreadPoolExecutor(8) as threads:
        asked = [f"{number} " + "x" * (number % 7 * 20_000) for number in range(200)]
        said = threads.map(lambda text: template.render([{"content": text}], None, {}), asked)
        assert list(said) == asked


@pytest.mark.parametrize("program", ["text.template_program", "grammars.checker"])
def test_its_program_imports_nothing_that_only_a_frontend_needs(program: str):
    """A client whose chat or grammar ended the process waits for the next one, and so do those after it."""
    code = f"import sys, scheduler_svc.frontend.{program}; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True).stdout.split()
    assert not {"structlog", "asyncio", "numpy", "zmq", "fastapi", "pydantic"} & {*modules}
