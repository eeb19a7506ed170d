"""`--override-generation-config`: what whoever serves a model says of sampling, in place of the model's own file."""

import click
import pytest

from scheduler_svc.__main__ import main
from scheduler_svc.frontend_options import FrontendOptions


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "Expecting value"),
        ("{temperature: 1}", "Expecting property name"),
        ("[0.7]", 'it is a JSON object, such as {"temperature": 0.7, "top_p": 0.9}'),
        ('{"temperature": 2.5}', "it recommends temperature 2.5: Expected `float` <= 2.0"),
        ('{"top_p": NaN}', "it recommends top_p nan"),
        ('{"top_k": "all"}', "it recommends top_k 'all': Expected `int`"),
        (
            '{"temprature": 1}',
            "'temprature' is none of temperature, top_p, top_k, min_p, repetition_penalty",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(value: str, said: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        main.make_context("baton-scheduler", ["--override-generation-config", value])
    assert refused.value.format_message().startswith("Invalid value for '--override-generation-config': " + said)


def test_what_is_said_reaches_frontends_as_it_was_said() -> None:
    said = '{"temperature": 0.2, "top_k": -1}'
    options = FrontendOptions(override_generation_config=said)
    assert options.sampling == {"temperature": 0.2, "top_k": -1}
    words = options.arguments()
    assert words[words.index("--override-generation-config") + 1] == said
    assert FrontendOptions().sampling == {}
