"""A GGUF file served by `baton up` and by llama.cpp's server: from the start of each to its tokens a second.

    python benchmarks/bench_gguf.py --model SmolLM2.gguf --llama-server llama.cpp/build/bin/llama-server

The sides take turns, one running at a time, each with all CPUs and with eight streams at most. Requests go to
`/v1/completions`, which both have, greedily and without an end. A line of JSON for each side has medians of the turns:

| figure | of |
|---|---|
| `ready_s` | the start of the process, until /health answers 200 |
| `memory_mb` | the proportional set size of all its processes after the run |
| `prompt_s` | a prompt of `--prompt` characters of a text, until the first token; nothing of it is cached |
| `tokens_a_s_1`, `tokens_a_s_8` | one stream after its first token; eight streams at once, with their prompts |
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click
import httpx

from common.exit_codes import EXIT_USAGE
from scheduler_svc.client.processes.local_fleet import free_ports

STREAMS, TOKENS, CONTEXT = 8, 128, 2048
READY_TIMEOUT_S = 120.0
SIDES = ("baton", "baton-int8", "llama.cpp")


def command(side: str, model: Path, llama_server: str, folder: str, port: int, executor_port: int) -> list[str]:
    """The command line of a side."""
    if side == "llama.cpp":
        context = ("-c", str(STREAMS * CONTEXT), "-np", str(STREAMS), "--no-webui")
        return [llama_server, "-m", str(model), "--port", str(port), *context]
    ports = ("--port", str(port), "--executor-port", str(executor_port))
    without = ("--no-journal", "--no-store", "--no-keep", "--no-page")
    int8 = ("--quantization", "int8", "--dtype", "bfloat16") if side == "baton-int8" else ()
    options = ("--log-dir", folder, "--served-model-name", "model", "--num-blocks", str(STREAMS * CONTEXT // 16))
    baton = (sys.executable, "-m", "scheduler_svc.client.cli", "up", "--model", str(model))
    return [*baton, *ports, *without, *options, *int8]


@contextmanager
def running(side: str, model: Path, llama_server: str) -> Iterator[tuple[subprocess.Popen[bytes], str, float]]:
    """Start a side: its process, its URL, and how long it took until it was ready."""
    port, executor_port = free_ports(2)
    url, began = f"http://127.0.0.1:{port}", time.monotonic()
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        arguments = command(side, model, llama_server, folder, port, executor_port)
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not is_ready(url):
                if process.poll() is not None or time.monotonic() > began + READY_TIMEOUT_S:
                    raise click.ClickException(f"{side} does not start: {' '.join(arguments)}")
                time.sleep(0.01)
            yield process, url, time.monotonic() - began
        finally:
            process.terminate()
            process.wait()


def is_ready(url: str) -> bool:
    """Ask a service whether it is ready; one that does not answer is not."""
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def stream(url: str, prompt: str) -> tuple[float, float]:
    """Seconds until the first token of an answer, and from there to its last one."""
    body = {"model": "model", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": True}
    body |= {"ignore_eos": True, "cache_prompt": False}  # the latter is llama.cpp's; we find no two prompts alike
    began = time.perf_counter()
    first = 0.0
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=600) as response:
        for line in response.iter_lines():
            if line.startswith("data: {") and not first:
                first = time.perf_counter()
    return first - began, time.perf_counter() - first


def measure(side: str, model: Path, llama_server: str, text: str, prompt_chars: int, turn: int) -> dict[str, float]:
    """The figures of one turn of a side."""
    with running(side, model, llama_server) as (process, url, ready_s):
        stream(url, "warm")
        prompt_s, rest_s = stream(url, f"{turn} {text[:prompt_chars]}")
        prompts = [f"{i} {turn} {text[prompt_chars + 400 * i :][:400]}" for i in range(STREAMS)]
        began = time.perf_counter()
        with ThreadPoolExecutor(STREAMS) as streams:
            list(streams.map(lambda prompt: stream(url, prompt), prompts))
        all_s = time.perf_counter() - began
        return {
            "ready_s": ready_s,
            "memory_mb": sum(map(set_size, family(process.pid))) / 1e6,
            "prompt_s": prompt_s,
            "tokens_a_s_1": (TOKENS - 1) / rest_s,
            "tokens_a_s_8": STREAMS * TOKENS / all_s,
        }


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def set_size(pid: int) -> int:
    """Bytes of a process; what several share counts in parts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


@click.command()
@click.option("--model", required=True, type=click.Path(exists=True, path_type=Path), help="GGUF file.")
@click.option("--llama-server", required=True, help="llama.cpp's server, built for this machine.")
@click.option("--text", type=click.File(), default=str(Path(__file__).parents[2] / "LICENSE"), help="For prompts.")
@click.option("--prompt", "prompt_chars", default=2000, show_default=True, help="Characters of the long prompt.")
@click.option("--turns", default=3, show_default=True, type=click.IntRange(1))
def main(model: Path, llama_server: str, text: TextIO, prompt_chars: int, turns: int) -> None:
    """Measure the sides in turn, and print their medians."""
    content = text.read()
    if len(content) < prompt_chars + 400 * STREAMS:
        click.echo(f"the text has {len(content)} characters, {prompt_chars + 400 * STREAMS} are needed", err=True)
        sys.exit(EXIT_USAGE)
    figures: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for turn in range(turns):
        for side in SIDES:
            figures[side].append(measure(side, model, llama_server, content, prompt_chars, turn))
    for side, of_turns in figures.items():
        medians = {name: round(statistics.median(each[name] for each in of_turns), 2) for name in of_turns[0]}
        click.echo(json.dumps({"side": side, "turns": turns, **medians}))
