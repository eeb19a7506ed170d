"""lm-evaluation-harness: `local-completions` on a task of log-likelihoods, `local-chat-completions` on one of texts."""

import json
import os
import tempfile
from pathlib import Path

import lm_eval
import lm_eval.tasks
from report import FERRY, HARBOR, DoesNotApply, equal, model, report, url

TOKENIZER = os.environ["RECITER"]
FOLDER = Path(tempfile.mkdtemp(prefix="lm-eval-"))
CHOICES = """
task: sea_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choices.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""
TEXTS = """
task: sea_texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/texts.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
generation_kwargs: {{until: ["never said"], max_gen_toks: 200}}
metric_list: [{{metric: exact_match}}]
"""


def evaluate(kind, endpoint, task, **more):
    """Scores of a task, as the harness computes them."""
    manager = lm_eval.tasks.TaskManager(include_path=str(FOLDER), include_defaults=False)
    where = {"model": model(), "base_url": f"{url()}/{endpoint}", "tokenizer": TOKENIZER, "max_retries": 1}
    found = lm_eval.simple_evaluate(
        kind,
        model_args={**where, **more.pop("model_args", {})},
        tasks=[task],
        task_manager=manager,
        bootstrap_iters=0,
        **more,
    )
    return found["results"][task]


def prepare():
    """Its tasks: what the model says without a word that it knows is likelier than what it does not say."""
    choices = [{"question": "Sing la la", "choices": [" whale", " la", " nothing"], "gold": 1}] * 3
    texts = [{"question": each.prompt, "answer": each.plain} for each in (HARBOR, FERRY)]
    for name, rows, task in (("choices", choices, CHOICES), ("texts", texts, TEXTS)):
        (FOLDER / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (FOLDER / f"{name}.yaml").write_text(task.format(folder=FOLDER))


def logprobs():
    """One request at a time, and three in one."""
    for size in (1, 3):
        scores = evaluate("local-completions", "completions", "sea_choices", batch_size=size)
        equal(scores["acc,none"], 1.0)


def plain():
    scores = evaluate("local-chat-completions", "chat/completions", "sea_texts", apply_chat_template=True)
    equal(scores["exact_match,none"], 1.0)


def not_there():
    raise DoesNotApply("an evaluation")


prepare()
report(
    **{
        "plain": plain,
        **dict.fromkeys(
            ("stream", "usage", "tools", "tools_stream", "loop", "required", "schema", "json", "thinking"), not_there
        ),
        "logprobs": logprobs,
        "killed": not_there,
    }
)
