"""The checker's process as a frontend holds it. Everything here blocks, so it is a thread's work."""

from pathlib import Path

import msgspec

from scheduler_svc.frontend.grammars.spec import Checked, CheckerSettings, GrammarSpec
from scheduler_svc.frontend.helper_process import HelperEvents, HelperProcess

COMPILE_MAY_TAKE_S = 2.0  # a plan may start four grammars, and an executor that takes 10 s for it counts as hung

_MODULE = "scheduler_svc.frontend.grammars.checker"
_EVENTS = HelperEvents(
    "grammar checker started",
    "grammar checker died",
    "grammar checker took too long",
    "grammar checker does not start",
)
_decoder = msgspec.json.Decoder(Checked)


class CheckerProcess:
    """Starts when it is needed, and again after it died.

    Args:
        folder: of the model, with its tokenizer.json.
        eos_token_ids: tokens that end the model's texts.
        compile_may_take_s: or the process is killed.

    Attributes:
        compile_may_take_s: as given.
    """

    def __init__(
        self, folder: Path, eos_token_ids: tuple[int, ...], *, compile_may_take_s: float = COMPILE_MAY_TAKE_S
    ) -> None:
        self.compile_may_take_s = compile_may_take_s
        settings = msgspec.json.encode(CheckerSettings(str(folder), list(eos_token_ids)))
        self._process = HelperProcess(_EVENTS, _MODULE, settings)

    def check(self, spec: GrammarSpec) -> Checked:
        """What the process says, or that it died of the spec.

        Raises:
            TimeoutError: it took too long, and was killed.
            HelperUnavailable: the process does not start.
        """
        answer = self._process.ask(msgspec.json.encode(spec), self.compile_may_take_s, kind=spec.kind)
        if answer is None:
            return Checked(reason="llguidance fails on it: it is nested too deeply, or takes too much memory")
        return _decoder.decode(answer)

    def close(self) -> None:
        """End the process, if there is one."""
        self._process.close()
