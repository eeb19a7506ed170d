"""Messages as models write them, with thoughts and calls, and what rules they are read by."""

from scheduler_svc.frontend.parsing.message import MessageRules

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "<é🦊>"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
ANSWER = f"<think>\nI should.\n</think>\n\nWell <b>:\n{CALL}\n{SECOND}"
BOTH = MessageRules(thought="may_open", calls="hermes")
RULES = [
    BOTH,
    MessageRules(thought="open", calls="hermes"),
    MessageRules(thought="may_open"),
    MessageRules(calls="hermes", is_one_call=True),
    MessageRules(thought="may_open", calls="qwen3_coder", text_parameters={"f": ("a",)}),
    MessageRules(thought="open", calls="json"),
    MessageRules(thought="may_open", calls="hermes", stop_in_thought=False, calls_in_thought=True),
    MessageRules(thought="open", calls="qwen3_coder", is_one_call=True, stop_in_thought=False, calls_in_thought=True),
]
CODER_CALL = (
    "<tool_call>\n<function=f>\n<parameter=a>\n<é🦊>\n</parameter>\n<parameter=b>\n[1, 2]\n</parameter>\n</function>\n"
    "</tool_call>"
)
JSON_CALL = '{"name": "f", "parameters": {"a": "<é🦊>"}}'
PIECES = ["<think>", "</think>", "\n", "<", "a", "🦊", CALL, SECOND, CALL[:20], '{"name"', "é", " two", CODER_CALL]
PIECES += [f"<think>hm {CALL}", CODER_CALL[:50], JSON_CALL, JSON_CALL[:30]]
