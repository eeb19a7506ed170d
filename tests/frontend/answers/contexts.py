"""What is asked of answers: all of it, of which a test says only what matters to it."""

from scheduler_svc.frontend.answers.answer_context import AnswerContext, AnswerKind


def context_of(kind: AnswerKind, **more: object) -> AnswerContext:
    """One answer to one prompt, with its usage, which can be read on after a break."""
    usual = {"created": 1, "model": "m", "num_prompts": 1, "n": 1, "stop": (), "include_usage": True}
    return AnswerContext(kind=kind, **usual | {"is_resumable": True} | more)
