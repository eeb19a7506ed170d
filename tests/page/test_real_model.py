"""A model that somebody has trained to answer, on the page: SmolLM2-135M-Instruct from its GGUF file."""

import pytest

from tests.page.services import running_service
from tests.page.talking import Talk, undisturbed
from tests.support.real_model import smollm2

QUESTION = "How many days are in a week?"


@pytest.mark.slow
def test_a_question_is_answered(browser, tmp_path):
    model = smollm2()
    with running_service(tmp_path, "--model", model, executors=1) as service, browser.visit(service.url) as visit:
        talk = Talk(visit)
        talk.set(temperature=0)
        talk.say(QUESTION)
        talk.wait_for_state()
        assert "7" in talk.text()
        assert talk.text() == undisturbed(service, [QUESTION], model=model.stem, temperature=0)
        assert talk.messages() == [QUESTION, talk.text()]
        assert talk.answer.locator("[data-testid=stat-finish]").text_content() == "stop"
        assert model.stem in visit.page.inner_text("body")
        visit.shot("talk-real-model")
