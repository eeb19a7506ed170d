"""`python -m scheduler_svc.frontend.grammars.checker`: compiles grammars for a frontend, in a process of its own.

llguidance is native code, and clients write what it reads: 50 kilobytes of rules overflow a stack of 8 MiB, and a
schema of 4 kilobytes keeps it busy for more than half a minute (both measured). Here neither costs more than this
process. What passes is safe for executors: this process has less stack than they have, and the same limits.

A question is a `GrammarSpec`, and its answer a `Checked`; that to the settings is empty.
"""

import json
import re
import threading
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLTokenizer

from common.grammars import parser_limits, read_grammar_tokenizer
from common.messages import MAX_GRAMMAR_CHARS
from scheduler_svc.frontend.grammars.build import build_grammar
from scheduler_svc.frontend.grammars.schema_parts import SchemaError
from scheduler_svc.frontend.grammars.spec import Checked, CheckerSettings, GrammarSpec, ToolGrammar
from scheduler_svc.frontend.helper_program import Answer, answer_questions

STACK_BYTES = 2**20  # an executor's threads have two to eight times that
MAX_ADDRESS_SPACE = 4 * 2**30
_PLACE = re.compile(r"\Aat \d+\(\d+\): |\n +\d+ \| .*\Z", re.DOTALL)  # in a grammar of ours, that no client has seen


def check(spec: GrammarSpec, tokenizer: LLTokenizer) -> Checked:
    """The grammar of a spec, or why it is refused: for the parameters of which tool, if they are at fault."""
    checked = _check(spec, tokenizer)
    if not checked.reason or spec.kind != "tools":
        return checked
    asked = msgspec.convert(json.loads(spec.text), ToolGrammar)
    for tool in asked.tools:
        alone = msgspec.structs.replace(asked, tools=[tool], content=None)
        text = json.dumps(msgspec.to_builtins(alone))
        if reason := _check(msgspec.structs.replace(spec, text=text), tokenizer).reason:
            return Checked(reason=reason if repr(tool.name[:64]) in reason else f"tool {tool.name!r}: {reason}")
    return checked


def _check(spec: GrammarSpec, tokenizer: LLTokenizer) -> Checked:
    try:
        grammar = build_grammar(spec, tokenizer)
    except SchemaError as error:
        return Checked(reason=str(error))
    except Exception as error:  # the converter of GBNF is a parser of its own, with errors of many kinds
        return Checked(reason=f"it cannot be read: {error}")
    if len(grammar) > MAX_GRAMMAR_CHARS:
        return Checked(reason=f"its grammar has {len(grammar)} characters, the limit is {MAX_GRAMMAR_CHARS}")
    # Not `validate_grammar`: that does not build what masks tokens, and so it takes more than this does.
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    if not matcher.is_error():
        return Checked(grammar)
    reason = matcher.get_error().split("<backtrace>")[0]
    if reason.startswith("NoExtension"):
        return Checked(reason="it matches no text")
    return Checked(reason=_PLACE.sub("", reason) if spec.kind == "tools" else reason)


def prepare(settings_json: bytes) -> tuple[Answer, bytes]:
    """What answers questions, with the model's tokenizer."""
    settings = msgspec.json.decode(settings_json, type=CheckerSettings)
    tokenizer = read_grammar_tokenizer(Path(settings.folder), eos_token_ids=settings.eos_token_ids)
    assert tokenizer is not None, "the frontend has read it, too"
    threading.stack_size(STACK_BYTES)

    def answer(question: bytes) -> bytes:
        answers: list[Checked] = []
        spec = msgspec.json.decode(question, type=GrammarSpec)
        thread = threading.Thread(target=lambda: answers.append(check(spec, tokenizer)))
        thread.start()
        thread.join()
        return msgspec.json.encode(answers[0])

    return answer, msgspec.json.encode(Checked())


if __name__ == "__main__":
    answer_questions(prepare, address_space=MAX_ADDRESS_SPACE)
