"""Embeddings a second on a CPU, beside transformers and OpenVINO.

    python benchmarks/bench_embeddings.py --text tinyshakespeare.txt --repeats 5
    python benchmarks/bench_embeddings.py --text tinyshakespeare.txt --lengths 128 --peer-python /opt/peers/bin/python

All sides embed the same texts, all at once: tokens, the hidden state of each text's last one, a vector of length 1.
Texts are passages of a file of about so many tokens as `--lengths` says, in turn. The weights are random, in the shape
of Qwen3-0.6B, with the demo model's vocabulary: no side computes logits, so its size does not matter.

| side | |
|---|---|
| baton, baton-int8 | both services; this process is the client of `/v1/embeddings`, one request with all texts |
| runner, runner-int8 | scheduler and runner in one process, which is sent token ids |
| transformers | in this Python (`--transformers-python`), batches sorted by length and padded |
| openvino, openvino-int8 | converted by optimum-intel, in `--openvino-python`; int8 compresses weights |

The peers try precisions, batch sizes (`--peer-batches`) and ways of running first, and use what is fastest on these
texts (peer_embeddings.py). All sides are up all the time and take turns as in bench_cpu.py: one computes at a time, and
each round begins with another side.

The benchmark prints one JSON line. `sides` has for each the median of its texts and tokens a second, all rounds, and
the CPU time that a text takes, which a busy machine changes least. `ratios` are rates of ours over a peer's, taken
within a round: the median, the lowest, the highest. `cosine` is the least likeness of a text's vector with that of
`runner` in bfloat16; the benchmark fails if that of a side without int8 is below 0.99, or if a side has computed other
tokens. `load` is the machine's load before and after, with ours.
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from tokenizers import Tokenizer

from benchmarks.cpu.cpu_ceilings import MemoryReader
from benchmarks.cpu.embedding_sides import service_side
from benchmarks.cpu.side_process import SideProcess
from benchmarks.cpu.take_turns import RunRequests, Side, Turn, ratios, started, take_turns
from benchmarks.rig.checkpoints import DTYPE
from benchmarks.rig.children import module_arguments
from benchmarks.rig.machine import all_threads, processor
from benchmarks.rig.named_model import model_folder
from benchmarks.rig.process_times import cpu_time_s
from benchmarks.rig.roofline import WorkModel
from benchmarks.rig.runs import TimedRun
from benchmarks.rig.service_load import pool_positions
from benchmarks.rig.workloads import WorkloadRequest
from common.logging import setup_logging
from executor_svc.model.families import read_config

OURS = ("baton", "runner", "baton-int8", "runner-int8")
PEERS = ("transformers", "openvino", "openvino-int8")
LEAST_COSINE = 0.99


def passages(text: str, tokenizer: Tokenizer, lengths: Sequence[int], count: int) -> list[str]:
    """Passages one behind the other, of about so many tokens each: what they are when they are tokenized.

    Raises:
        click.UsageError: the text is too short.
    """
    encoding = tokenizer.encode(text, add_special_tokens=False)
    found, start = [], 0
    for number in range(count):
        end = start + lengths[number % len(lengths)]
        if end > len(encoding.offsets):
            raise click.UsageError(f"the text has {len(encoding.offsets)} tokens, too few for {count} passages")
        found.append(text[encoding.offsets[start][0] : encoding.offsets[end - 1][1]])
        start = end
    return found


def executor_options(
    folder: Path, prompts: Sequence[Sequence[int]], quantization: str, more: Sequence[str]
) -> list[str]:
    """Of an executor that has room for all prompts at once, and no more: the first run has touched all of it."""
    requests = [WorkloadRequest(0.0, np.array(prompt, np.int32), 0) for prompt in prompts]
    gib = pool_positions(requests) * WorkModel(read_config(folder), DTYPE.itemsize).kv_bytes_a_token / 2**30
    kind = ("--device", "cpu", "--task", "embed", "--quantization", quantization)
    return [*kind, "--kv-cache-memory", f"{gib:.6f}", *more]


def our_side(name: str, folder: Path, work: "Work", more: Sequence[str]) -> AbstractContextManager[RunRequests]:
    """One of `OURS`."""
    options = executor_options(folder, work.prompts, "int8" if name.endswith("int8") else "none", more)
    if name.startswith("baton"):
        return service_side(folder, options, work.texts, work.out(name))
    command = [sys.executable, *module_arguments("cpu.embedding_sides"), "--model", str(folder), *options]
    return SideProcess(name, command, {"prompts": work.prompts, "out": str(work.out(name))})


def peer_side(name: str, python: str, folder: Path, work: "Work", batches: Sequence[int]) -> SideProcess:
    """One of `PEERS`."""
    script = Path(__file__).with_name("peer_embeddings.py")
    wanted = {"texts": work.texts, "out": str(work.out(name)), "threads": all_threads(), "batch_sizes": batches}
    return SideProcess(name, [python, str(script), name, str(folder)], wanted)


class Work:
    """What all sides embed.

    Args:
        texts: in their order.
        tokenizer: of the model.
        scratch: folder for vectors.
    """

    def __init__(self, texts: list[str], tokenizer: Tokenizer, scratch: Path) -> None:
        self.texts = texts
        self.prompts = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        self._scratch = scratch

    @property
    def num_tokens(self) -> int:
        """Of all texts."""
        return sum(map(len, self.prompts))

    def out(self, name: str) -> Path:
        """The file with the vectors of a side's last run."""
        return self._scratch / f"{name}.npy"

    def cosines(self, names: Sequence[str]) -> dict[str, float]:
        """The least likeness of each side's vectors with those of the runner in bfloat16, or else of the first side."""
        vectors = {name: np.load(self.out(name)).astype(np.float64) for name in names}
        known = vectors["runner" if "runner" in names else names[0]]
        return {name: float((each * known).sum(1).min()) for name, each in vectors.items()}


class CpuTimes:
    """Seconds of CPU that each run of a side took, in all of its processes: a busy machine changes them least."""

    def __init__(self, side: Side) -> None:
        self.runs_s: list[float] = []
        self.side = Side(self._run, side.pids)
        self._timed = side

    def _run(self, name: str, limit: int | None) -> TimedRun:
        before_s = cpu_time_s(self._timed.pids)
        run = self._timed.run(name, limit)
        self.runs_s.append(cpu_time_s(self._timed.pids) - before_s)
        return run


def check(work: Work, rounds: Sequence[Mapping[str, Turn]]) -> dict[str, float]:
    """The sides' cosines.

    Raises:
        click.ClickException: a side did other work.
    """
    cosines = work.cosines(sorted(rounds[0]))
    for name, cosine in cosines.items():
        if "int8" not in name and not cosine >= LEAST_COSINE:
            raise click.ClickException(f"{name} has another vector of some text: its cosine is {cosine}")
        for turns in rounds:
            if turns[name].run.num_tokens != work.num_tokens:
                raise click.ClickException(f"{name} computed {turns[name].run.num_tokens} of {work.num_tokens} tokens")
    return cosines


def side_figures(name: str, work: Work, rounds: Sequence[Mapping[str, Turn]], times: CpuTimes) -> dict[str, Any]:
    """A side's rates, and what it takes of the CPUs."""
    seconds = [turns[name].run.end_s - turns[name].run.start_s for turns in rounds]
    middle = median(seconds)
    return {
        "texts_s": round(len(work.texts) / middle, 2),
        "tok_s": round(work.num_tokens / middle, 1),
        "texts_s_runs": [round(len(work.texts) / each, 2) for each in seconds],
        "cpu_ms_a_text": round(1000 * median(times.runs_s[-len(rounds) :]) / len(work.texts), 1),
    }


def ratio_figures(rounds: Sequence[Mapping[str, Turn]]) -> dict[str, list[float]]:
    """Rates of each of ours over each peer's: the median of the rounds, the lowest, the highest."""
    names = rounds[0]
    pairs = [(one, other) for one in OURS for other in PEERS if one in names and other in names]
    each = {f"{one}/{other}": ratios(rounds, one, other) for one, other in pairs}
    return {pair: [round(value, 3) for value in (median(of), min(of), max(of))] for pair, of in each.items()}


@click.command(context_settings={"show_default": True})
@click.option("--model", default="0.6B", help="A shape, or the folder of a checkpoint with a tokenizer.")
@click.option("--text", "text_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--lengths", default="32,128,512", help="Tokens of the passages, in turn.")
@click.option("--texts", "num_texts", default=24, type=click.IntRange(1), help="Passages.")
@click.option("--repeats", default=5, type=click.IntRange(1), help="Rounds; in each, each side runs once.")
@click.option("--sides", default="baton,runner,transformers", help=f"Of {', '.join(OURS + PEERS)}.")
@click.option("--transformers-python", default=sys.executable, help="The Python that has transformers.")
@click.option("--openvino-python", default=sys.executable, help="The Python that has optimum-intel and openvino.")
@click.option("--peer-batches", default="1,4,16", help="Batch sizes that peers try.")
@click.option(
    "--executor-option", "more", multiple=True, help="An option of the executors, e.g. --executor-option=--threads=1"
)
def main(
    model: str,
    text_file: Path,
    lengths: str,
    num_texts: int,
    repeats: int,
    sides: str,
    transformers_python: str,
    openvino_python: str,
    peer_batches: str,
    more: tuple[str, ...],
) -> None:
    """Measure embeddings on a CPU beside transformers and OpenVINO."""
    setup_logging("bench", "warning")
    names = sides.split(",")
    if unknown := set(names) - {*OURS, *PEERS}:
        raise click.UsageError(f"no such sides: {', '.join(sorted(unknown))}")
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as temporary, ExitStack() as stack:
        folder = Path(str(model_folder(model, Path(temporary))))
        tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        sizes = [int(each) for each in lengths.split(",")]
        work = Work(passages(text_file.read_text(), tokenizer, sizes, num_texts), tokenizer, Path(temporary))
        batches = [int(each) for each in peer_batches.split(",")]
        memory, contexts = MemoryReader(all_threads()), {}
        for name in names:
            python = transformers_python if name == "transformers" else openvino_python
            is_ours = name in OURS
            contexts[name] = (
                our_side(name, folder, work, more) if is_ours else peer_side(name, python, folder, work, batches)
            )
        timed = {name: CpuTimes(stack.enter_context(started(context))) for name, context in contexts.items()}
        up = {name: each.side for name, each in timed.items()}
        for side in up.values():
            side.run("warm-up", None)
        rounds = take_turns(up, repeats, memory.bytes_per_s)
        cosines = check(work, rounds)
    load.append(os.getloadavg()[0])
    facts = {name: context.facts for name, context in contexts.items() if isinstance(context, SideProcess)}
    figures = {
        "cpu": processor(),
        "threads": all_threads(),
        "load": [round(each, 2) for each in load],
        "model": model,
        "texts": num_texts,
        "lengths": sizes,
        "tokens": work.num_tokens,
        "sides": {name: side_figures(name, work, rounds, timed[name]) | facts.get(name, {}) for name in names},
        "cosine": {name: round(cosine, 5) for name, cosine in cosines.items()},
        "ratios": ratio_figures(rounds),
        "straddling_runs": sum(turn.straddles for turns in rounds for turn in turns.values()),
        "idle_cpus": round(max(turn.others_cpus for turns in rounds for turn in turns.values()), 3),
    }
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
