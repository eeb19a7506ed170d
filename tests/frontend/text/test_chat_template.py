"""Templates render as in transformers, and a conversation that they refuse is the client's error."""

import gc
import json
import os
import resource
from pathlib import Path

import pytest

from common.errors import CheckpointError, RequestRejected
from scheduler_svc.frontend.helper_process import MAX_ANSWER_BYTES
from scheduler_svc.frontend.text.chat_template import MAX_SOURCE_CHARS, ChatTemplate
from scheduler_svc.frontend.text.template_program import TemplateProgram
from tests.support.chat_templates import QWEN3_LIKE
from tests.support.children import children_of

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "What is it like in <city> & around? Grüße",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Is it raining in Köln?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "I should look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
        ],
    },
    {"role": "tool", "content": "rain", "tool_call_id": "c1"},
    {"role": "tool", "content": "and <wind>", "tool_call_id": "c2"},
    {"role": "assistant", "content": "<think>\nSo it is.\n</think>\n\nYes."},
    {"role": "user", "content": "Thanks"},
]
EVERYTHING_ELSE = """
{%- for n in [1, 2, 3] %}
  {%- if n == 2 %}{% continue %}{% endif %}
  {%- generation %}{{ n }}{% endgeneration %}
{%- endfor %}
{{ {"b": "<ä>", "a": [1]} | tojson }} {{ {"b": 1, "a": 2} | tojson(indent=1, sort_keys=true) }}
  {% if eos_token is defined %}
{{ eos_token }}|{{ bos_token }}
  {% endif %}
"""


def reference(source: str, messages: list, tools: list | None, **variables: object) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        conversations=[messages], tools=tools, chat_template=source, add_generation_prompt=True, **variables
    )
    return rendered[0]


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
@pytest.mark.parametrize("num_messages", [2, 3, 5, 7])
def test_qwen3_like_template_renders_as_in_transformers(tools: list | None, variables: dict, num_messages: int):
    messages = MESSAGES[:num_messages]
    expected = reference(QWEN3_LIKE, messages, tools, **variables)
    assert TemplateProgram(QWEN3_LIKE, {}).render(messages, tools, variables) == expected
    assert ("<think>\n\n</think>" in expected) == (variables.get("enable_thinking") is False)


def test_other_constructs_render_as_in_transformers():
    tokens = {"eos_token": "<e>", "bos_token": "<b>"}
    expected = reference(EVERYTHING_ELSE, MESSAGES, None, **tokens)
    assert TemplateProgram(EVERYTHING_ELSE, tokens).render(MESSAGES, None, {}) == expected


def test_special_tokens_come_as_strings_or_objects(tmp_path):
    settings = {"chat_template": "{{ bos_token }}{{ eos_token }}", "bos_token": {"content": "<b>"}, "eos_token": "<e>"}
    template = ChatTemplate.of_model(tmp_path, settings)
    assert template is not None
    assert template.render([], None, {}) == "<b><e>"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "cannot render"),
        ("{{ 1 / 0 }}", "cannot render"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ ''.__class__.__mro__ }}", "refuses"),
    ],
)
def test_a_conversation_that_does_not_fit_is_refused(source: str, message: str):
    with pytest.raises(RequestRejected, match=message):
        TemplateProgram(source, {}).render(MESSAGES, None, {})


def test_a_template_that_is_none_is_the_models_fault(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be compiled"):
        _ = ChatTemplate("{% if %}", {}).variables
    with pytest.raises(CheckpointError, match="is a dict"):
        ChatTemplate.of_model(tmp_path, {"chat_template": json.loads("{}")})


def test_the_time_is_known():
    assert len(TemplateProgram("{{ strftime_now('%Y-%m-%d') }}", {}).render([], None, {})) == 10


def test_what_json_of_a_request_can_hold_reaches_the_template():
    content = [10**200, 1e308, True, None, {"a b": ["\u2028\n"]}]
    rendered = ChatTemplate("{{ messages[0].content | tojson }}", {}).render([{"content": content}], None, {})
    assert json.loads(rendered) == content
    half = [{"role": "user", "content": "\ud800"}]
    with pytest.raises(RequestRejected, match="a text is not valid Unicode: surrogates not allowed"):
        ChatTemplate("{{ messages[0].content }}", {}).render(half, None, {})
    assert ChatTemplate("{{ messages[0].role }}", {}).render(half, None, {}) == "user"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in messages %}{% for b in messages %}{% for c in messages %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
        "{% set n = namespace(x=9) %}{{ n.x ** 99999999 }}",
        "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{{ messages | length * 'x' * 10**9 }}",
        "{% set n = 9**9 %}{{ 'x' | center(n) }}",
        "{% set n = 9**9 %}{{ '%0*d' | format(n, 1) }}",
        "{% set n = 9**9 %}{{ '{:{}}'.format(1, n) }}",
        "{% set n = 9**9 %}{{ 'x'.ljust(n) }}",
        "{% set n = 9**9 %}{{ [1] * n }}",
        "{% set n = 9**9 %}{{ 'a\nb' | indent(n) }}",
        "{% set n = 9**9 %}{{ [1] | tojson(indent=n) }}",
        "{% set x = 'x' * 99999 %}{% set x = x | replace('x', x) %}{{ x | list | length }}",
        "{% set x = 'x' * 99999 %}{{ ([x] * 99999) | join(x) }}",
        "{% for i in range(99) %}{{ 'x' * 10**6 }}{% endfor %}",
        "{{ lipsum(n=99999) }}",
        "{% set n = 9**8 %}{{ strftime_now('%H' * n) }}",
    ],
)
def test_a_template_without_end_costs_its_process_alone(source: str):
    """Time, memory or the length of its text: one of the three has an end, whatever it does."""
    source = "{% if enough is not defined %}" + source + "{% else %}whole{% endif %}"
    template = ChatTemplate(source, {}, render_may_take_s=0.3)
    assert template.variables
    before = peak_bytes()
    ended = r"the model's chat template (takes more|fails|writes more|cannot render)"
    with pytest.raises(RequestRejected, match=ended) as rejected:
        template.render([{"role": "user", "content": "x"}] * 4096, None, {})
    assert rejected.value.code == "invalid_value"
    assert peak_bytes() - before < 2 * MAX_ANSWER_BYTES + 2**24
    template.render_may_take_s = 60.0
    assert template.render(MESSAGES, None, {"enough": True}) == "whole", "the next one is served"


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x" * (MAX_SOURCE_CHARS + 1), f"has {MAX_SOURCE_CHARS + 1} characters, the limit is {MAX_SOURCE_CHARS}"),
        ("{% if x %}" * 5000, "cannot be compiled"),
        ("{{ " + "(" * 5000, "cannot be compiled"),
        ("{{ " + "-" * 5000 + "1 }}", "cannot be compiled"),
        ("{{ ('a b ' * 500000) | title | length }}" * 200, "compiling the chat template takes more than 2 s"),
        ("{{ strftime_now('%H' * 10**8) }}", "cannot be compiled: it takes too much memory"),
        ("{{ " + "9" * 5000 + " }}", "cannot be compiled"),
        ("\ud800", "is not valid Unicode"),
    ],
    ids=["long", "blocks", "brackets", "signs", "time", "string", "digits", "half a character"],
)
def test_a_template_that_costs_too_much_to_compile_is_the_models_fault(source: str, reason: str):
    with pytest.raises(CheckpointError, match=reason):
        _ = ChatTemplate(source, {}).variables


def test_the_process_of_a_template_ends_with_it():
    gc.collect()
    before = children_of(os.getpid())
    template = ChatTemplate("x", {})
    assert children_of(os.getpid()) == before, "it is started when it is needed"
    assert template.render([], None, {}) == "x"
    assert len(children_of(os.getpid()) - before) == 1
    del template
    gc.collect()
    assert children_of(os.getpid()) == before


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (b"{% if %}", "the model's chat template cannot be compiled"),
        (b"x" * (MAX_SOURCE_CHARS + 1), "the chat template has"),
        (b"\xff", "is not UTF-8"),
        (None, "there is no "),
    ],
)
def test_a_chosen_template_that_cannot_be_used_is_named(tmp_path: Path, source: bytes | None, fault: str):
    chosen = tmp_path / "chosen"
    if source is not None:
        chosen.write_bytes(source)
    with pytest.raises(CheckpointError, match=fault) as refused:
        _ = ChatTemplate.of_model(tmp_path, {"chat_template": "mine"}, chosen).variables
    assert str(chosen) in str(refused.value)
