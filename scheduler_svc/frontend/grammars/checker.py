"""`python -m scheduler_svc.frontend.grammars.checker`: compiles grammars for a frontend, in a process of its own.

llguidance is native code, and clients write what it reads: 50 kilobytes of rules overflow a stack of 8 MiB, and a
schema of 4 kilobytes keeps it busy for more than half a minute (both measured). Here neither costs more than this
process. What passes is safe for executors: this process has less stack than they have, and the same limits.

It reads a `GrammarSpec` from each line of stdin and writes a `Checked` to stdout, after an empty one when it is ready.
"""

import io
import os
import re
import resource
import sys
import threading

import msgspec
from llguidance import LLMatcher, LLTokenizer

from common.grammars import parser_limits
from common.messages import MAX_GRAMMAR_CHARS
from common.parent_death import killed_with
from scheduler_svc.frontend.grammars.build import build_grammar
from scheduler_svc.frontend.grammars.spec import Checked, CheckerSettings, GrammarSpec

STACK_BYTES = 2**20  # an executor's threads have two to eight times that
MAX_ADDRESS_SPACE = 4 * 2**30
_PLACE = re.compile(r"\Aat \d+\(\d+\): |\n +\d+ \| .*\Z", re.DOTALL)  # in a grammar of ours, that no client has seen


def check(spec: GrammarSpec, tokenizer: LLTokenizer) -> Checked:
    """The grammar of a spec, or why it is refused."""
    try:
        grammar = build_grammar(spec, tokenizer)
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


def main() -> None:
    """Read, check, answer, until the frontend closes stdin."""
    settings = msgspec.json.decode(sys.argv[1], type=CheckerSettings)
    if (die_with_parent := killed_with(settings.parent)) is not None:
        die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_address_space()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    tokenizer = LLTokenizer(settings.tokenizer_file, eos_token=settings.eos_token_ids or None)
    _write(answers, Checked())
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)  # the library's messages quote clients, who could fill our log with them
    threading.stack_size(STACK_BYTES)
    for line in sys.stdin.buffer:
        spec = msgspec.json.decode(line, type=GrammarSpec)
        thread = threading.Thread(target=lambda spec=spec: _write(answers, check(spec, tokenizer)))
        thread.start()
        thread.join()


def _limit_address_space() -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = MAX_ADDRESS_SPACE if hard == resource.RLIM_INFINITY else min(MAX_ADDRESS_SPACE, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _write(answers: io.RawIOBase, checked: Checked) -> None:
    line = memoryview(msgspec.json.encode(checked) + b"\n")
    while line:
        line = line[answers.write(line) :]  # a pipe takes a part of what is long


if __name__ == "__main__":
    main()
