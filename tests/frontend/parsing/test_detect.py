"""What chat templates say of their models, and prompts of the answers to come."""

import pytest

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.parsing.detect import detect, thought_start

# The lines of published templates that say how calls and thoughts are written.
QWEN3 = r"""{%- if tools %}{{- "<tools>" }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
{{- "</tools>\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>" }}{%- endif %}
{%- if '</think>' in content %}{%- endif %}{{- '<think>\n\n</think>\n\n' }}"""
QWEN3_CODER = r"""{%- if tools %}{{- "<tool_call>\n<function=example>\n<parameter=p>\nv\n</parameter>" }}{%- endif %}"""
QWEN25 = r"""{%- if tools %}{{- "<tool_call>\n{\"name\": <name>, \"arguments\": <args>}\n</tool_call>" }}{%- endif %}"""
LLAMA3 = r"""{%- if tools is not none %}{{- 'Respond with {"name": function name, "parameters": ...}.' }}{%- endif %}"""
GLM = r"""{%- if tools %}{{- "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>" }}{%- endif %}<think>"""
DEEPSEEK_R1 = r"""{% if add_generation_prompt %}{{'<|Assistant|><think>\n'}}{% endif %}"""
MISTRAL = r"""{%- if tools %}[AVAILABLE_TOOLS]{"type": "function"}{% endif %}[TOOL_CALLS][{"name": "f"}]"""
FUNCTIONARY = r"""{%- if tools %}{{- '<function=example>{"argument": 1}</function>' }}{%- endif %}"""
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "calls", "thoughts"),
    [
        (QWEN3, "hermes", "qwen3"),
        (QWEN3_CODER, "qwen3_coder", "none"),
        (QWEN25, "hermes", "none"),
        (LLAMA3, "json", "none"),
        (GLM, "none", "qwen3"),
        (DEEPSEEK_R1, "none", "qwen3"),
        (MISTRAL, "none", "none"),
        (FUNCTIONARY, "none", "none"),
        (PLAIN, "none", "none"),
        ("", "none", "none"),
    ],
)
def test_formats_of_templates(template: str, calls: str, thoughts: str):
    assert detect(template)[:2] == (calls, thoughts)
    assert detect(template).unread_calls == ("[TOOL_CALLS]" if template == MISTRAL else "")


def test_format_of_the_demo_model():
    assert detect((DEMO_MODEL_DIR / "chat_template.jinja").read_text())[:2] == ("hermes", "none")


@pytest.mark.parametrize(
    ("prompt", "start"),
    [
        ("<|im_start|>assistant\n<think>\n", "open"),
        ("<|im_start|>assistant\n<think>", "open"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "none"),
        ("<|im_start|>assistant\n", "may_open"),
        ("<think>\nhm\n</think>\n\nYes.<|im_end|>\n<|im_start|>assistant\n", "may_open"),
        ("<think>\nhm\n</think>\n\n", "may_open"),
        ("", "may_open"),
    ],
)
def test_where_an_answer_begins(prompt: str, start: str):
    assert thought_start(prompt) == start
