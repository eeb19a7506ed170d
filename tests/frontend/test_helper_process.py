"""A process that works for a frontend, asked by several threads at once."""

from concurrent.futures import ThreadPoolExecutor

from scheduler_svc.frontend.text.chat_template import ChatTemplate


def test_each_thread_gets_the_answer_to_its_own_question():
    template = ChatTemplate("{{ messages[0].content }}", {})
    with ThreadPoolExecutor(8) as threads:
        asked = [f"{number} " + "x" * (number % 7 * 20_000) for number in range(200)]
        said = threads.map(lambda text: template.render([{"content": text}], None, {}), asked)
        assert list(said) == asked
