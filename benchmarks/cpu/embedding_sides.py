"""Our sides of bench_embeddings.py: the services behind `/v1/embeddings`, and the executor's runner alone."""

import base64
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.cpu.parent_lines import ParentLines
from benchmarks.cpu.take_turns import RunRequests
from benchmarks.rig.in_process import in_process
from benchmarks.rig.runs import TimedRun
from common import messages as m
from common.logging import setup_logging
from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, free_ports
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.step_output import SequenceEnd

REQUEST_TIMEOUT_S = 600.0


@contextmanager
def service_side(
    model: Path, executor_options: Sequence[str], texts: Sequence[str], out: Path
) -> Iterator[RunRequests]:
    """One scheduler with its frontend and one executor; this process is the client.

    Args:
        executor_options: beside the model.
        texts: of all runs; each run has a salt of its own, so none finds another's prefixes.
        out: the file that gets the last run's vectors.
    """
    port, executor_port = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        spec = FleetSpec(
            model=str(model),
            port=port,
            executor_port=executor_port,
            scheduler_options=("--journal", f"{folder}/journal.sqlite3"),
            executor_options=tuple(executor_options),
        )
        with (
            LocalFleet(spec, Path(folder)) as fleet,
            httpx.Client(base_url=spec.url, timeout=REQUEST_TIMEOUT_S) as http,
        ):
            fleet.wait_ready()
            body = {"model": http.get("/v1/models").json()["data"][0]["id"], "input": list(texts)}
            yield lambda name, limit: _embed(http, {**body, "cache_salt": name, "encoding_format": "base64"}, out)


def _embed(http: httpx.Client, body: dict[str, Any], out: Path) -> TimedRun:
    """One request with all texts, until its vectors are arrays."""
    start_s = time.monotonic()
    response = http.post("/v1/embeddings", json=body)
    response.raise_for_status()
    answer = response.json()
    vectors = [np.frombuffer(base64.b64decode(entry["embedding"]), np.float32) for entry in answer["data"]]
    end_s = time.monotonic()
    np.save(out, np.stack(vectors))
    return TimedRun(start_s, end_s, answer["usage"]["prompt_tokens"])


def embed_submits(prompts: Sequence[Sequence[int]], salt: str) -> list[m.Submit]:
    """Requests for the hidden states of the prompts' last tokens; runs with different salts share no cached prompts."""
    params = m.SamplingParams(max_tokens=1, pooling="hidden")
    return [
        m.Submit(f"{salt}-{number}", np.array(prompt, np.int32).tobytes(), params, cache_salt=salt)
        for number, prompt in enumerate(prompts)
    ]


def main(arguments: Sequence[str], fd: int) -> None:
    """The runner's side, in a process of its own: run what the parent asks for (parent_lines.py).

    python -m benchmarks.cpu.embedding_sides [options of baton-executor] SOCKET_FD

    The first message has `prompts`, the texts' token ids, and `out`, the file that gets the last run's vectors.
    """
    setup_logging("bench", "warning")
    parent = ParentLines(fd)
    messages = parent.messages()
    wanted = next(messages)
    prompts, found = wanted["prompts"], {}
    with in_process(arguments, SchedulerConfig(max_waiting=len(prompts))) as process:

        def take(end: SequenceEnd) -> None:
            found[end.sequence.request_id] = np.frombuffer(end.sequence.pooled, np.float32)

        parent.answer({})
        for message in messages:
            submits = embed_submits(prompts, message["name"])
            found.clear()
            start_s = time.monotonic()
            process.run(submits, take)
            states = np.stack([found[submit.request_id] for submit in submits])
            vectors = states / np.linalg.norm(states, axis=1, keepdims=True)
            end_s = time.monotonic()
            np.save(wanted["out"], vectors)
            parent.answer({"start_s": start_s, "end_s": end_s, "num_tokens": sum(map(len, prompts))})


if __name__ == "__main__":
    main(sys.argv[1:-1], int(sys.argv[-1]))
