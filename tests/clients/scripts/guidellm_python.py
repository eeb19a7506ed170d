"""guidellm: a benchmark of chats and one of completions, by its command."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from report import DoesNotApply, equal, report, url

TOKENIZER = os.environ["RECITER"]


def run(path):
    """Measure three requests, and look into the benchmark's own report."""
    folder = Path(tempfile.mkdtemp(prefix="guidellm-"))
    target = url().removesuffix("/v1")
    command = [
        *(Path(sys.executable).parent / "guidellm", "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={target},request_format={path}"),
        *("--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=3"),
        *("--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8"),
        *("--tokenizer", f"kind=hf_auto,model={TOKENIZER}"),
        *("--output", f"kind=json,path={folder / 'report.json'}"),
    ]
    pipes = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, check=False, cwd=folder, **pipes)
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout)[-2000:])
    found = json.loads((folder / "report.json").read_text())
    requests = found["benchmarks"][0]["requests"]
    equal((len(requests["successful"]), len(requests["errored"])), (3, 0))
    equal({each["output_tokens"] for each in requests["successful"]}, {8})


def not_there():
    raise DoesNotApply("a benchmark")


report(
    **{
        "plain": lambda: run("/v1/completions"),
        "stream": lambda: run("/v1/chat/completions"),
        "usage": lambda: run("/v1/chat/completions"),
        **dict.fromkeys(
            ("tools", "tools_stream", "loop", "required", "schema", "json", "thinking", "logprobs", "killed"), not_there
        ),
    }
)
