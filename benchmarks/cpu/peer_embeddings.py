"""transformers' or OpenVINO's embeddings of bench_embeddings.py's texts, which starts this with the peer's Python.

    /path/to/peer/bin/python benchmarks/cpu/peer_embeddings.py KIND MODEL_FOLDER SOCKET_FD

KIND is `transformers`, `openvino` or `openvino-int8`.

Questions and answers go through the socket (parent_lines.py). It is started by its path and imports its siblings only.

A run is what sentence-transformers does: tokenize, sort by length, pad batches of equal size, take the hidden state of
the last token, and normalize it. Which precision, batch size and way of running is fastest on these texts is tried
before the first run, and each run uses the fastest. For OpenVINO the model is converted and its weights compressed
(int8) by optimum-intel; `throughput` runs as many requests beside each other as OpenVINO likes, and `latency` one.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from itertools import product
from typing import Any

import numpy as np
from parent_lines import ParentLines  # type: ignore[import-not-found]  # a sibling: see above

Embed = Callable[[Sequence[tuple[Any, Any]]], list[Any]]
"""Padded batches of ids and masks, int64 [texts, tokens], to the hidden states of their last tokens [texts, hidden]."""


class Peer:
    """A library with its model, and the texts of all runs.

    Args:
        folder: of the model, with a tokenizer.
        wanted: `texts`; `batch_sizes` to try; `out`, the file that gets the last run's vectors; how many `threads`.
    """

    def __init__(self, folder: str, ways: dict[str, Embed], wanted: dict[str, Any]) -> None:
        import transformers  # noqa: PLC0415  (slow, and the peer's)

        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self._texts: list[str] = wanted["texts"]
        self._out = wanted["out"]
        self._ways = ways
        self.tried = {
            choice: self._seconds(*choice) for choice in product(ways, sorted(set(wanted["batch_sizes"]), reverse=True))
        }
        self._chosen = min(self.tried, key=lambda choice: self.tried[choice])

    @property
    def facts(self) -> dict[str, Any]:
        """What was tried, in texts a second, and what was chosen."""
        rates = {f"{way}, batches of {size}": round(len(self._texts) / s, 2) for (way, size), s in self.tried.items()}
        return {"way": self._chosen[0], "batch_size": self._chosen[1], "tried_texts_s": rates}

    def run(self) -> dict[str, Any]:
        """Embed all texts; the fields of a `TimedRun`. The vectors are written afterwards."""
        start_s = time.monotonic()
        vectors, num_tokens = self._embed(*self._chosen)
        end_s = time.monotonic()
        np.save(self._out, vectors)
        return {"start_s": start_s, "end_s": end_s, "num_tokens": num_tokens}

    def _seconds(self, way: str, batch_size: int) -> float:
        """The faster of two runs: the first one sets up what each shape of a batch needs."""
        times = []
        for _ in range(2):
            start_s = time.monotonic()
            self._embed(way, batch_size)
            times.append(time.monotonic() - start_s)
        return min(times)

    def _embed(self, way: str, batch_size: int) -> tuple[Any, int]:
        """Unit vectors, float32 [texts, hidden], and the number of tokens."""
        ids = self._tokenizer(self._texts)["input_ids"]
        order = sorted(range(len(ids)), key=lambda text: -len(ids[text]))
        batches = [padded([ids[text] for text in group]) for group in pieces(order, batch_size)]
        vectors = np.concatenate(self._ways[way](batches)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        in_order = np.empty_like(vectors)
        in_order[order] = vectors
        return in_order, sum(map(len, ids))


def pieces(items: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """The items in batches."""
    return (items[start : start + size] for start in range(0, len(items), size))


def padded(ids: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    """A batch with zeros behind shorter texts, and its mask, int64 [texts, tokens]."""
    batch = np.zeros((2, len(ids), max(map(len, ids))), dtype=np.int64)
    for row, text in enumerate(ids):
        batch[0, row, : len(text)], batch[1, row, : len(text)] = text, 1
    return batch[0], batch[1]


def last_states(states: Any, mask: Any) -> Any:
    """The hidden states of the last tokens [texts, hidden], of those of all tokens [texts, tokens, hidden]."""
    return states[np.arange(len(mask)), mask.sum(1) - 1]


def transformers_ways(folder: str, threads: int) -> dict[str, Embed]:
    """transformers in float32 and in bfloat16."""
    import torch  # noqa: PLC0415  (the peer's)
    import transformers  # noqa: PLC0415

    torch.set_num_threads(threads)

    def way(dtype: Any) -> Embed:
        model: Any = transformers.AutoModel.from_pretrained(folder, dtype=dtype).eval()

        @torch.inference_mode()
        def embed(batches: Sequence[tuple[Any, Any]]) -> list[Any]:
            found = []
            for ids, mask in batches:
                tokens = torch.from_numpy(ids)
                states = model(tokens, attention_mask=torch.from_numpy(mask), use_cache=False).last_hidden_state
                found.append(last_states(states, mask).float().numpy())
            return found

        return embed

    return {"bfloat16": way(torch.bfloat16), "float32": way(torch.float32)}


def openvino_ways(folder: str, threads: int, *, int8: bool) -> dict[str, Embed]:
    """OpenVINO in bfloat16 (weights in int8 or not), one request at a time and several beside each other."""
    import openvino  # type: ignore[import-not-found]  # noqa: PLC0415  (the peer's)
    from optimum.intel import OVModelForFeatureExtraction  # type: ignore[import-not-found]  # noqa: PLC0415

    loaded = OVModelForFeatureExtraction.from_pretrained(folder, export=True, compile=False, load_in_8bit=int8)
    model = loaded.model
    names = [each.any_name for each in model.inputs]

    def way(hint: str) -> Embed:
        settings = {"PERFORMANCE_HINT": hint, "INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": threads}
        queue = openvino.AsyncInferQueue(openvino.Core().compile_model(model, "CPU", settings))

        def embed(batches: Sequence[tuple[Any, Any]]) -> list[Any]:
            found: list[Any] = [None] * len(batches)

            def take(request: Any, batch: tuple[int, Any]) -> None:
                found[batch[0]] = last_states(request.get_output_tensor(0).data, batch[1])

            queue.set_callback(take)
            for number, (ids, mask) in enumerate(batches):
                queue.start_async(inputs(names, ids, mask), (number, mask))
            queue.wait_all()
            return found

        return embed

    return {"latency": way("LATENCY"), "throughput": way("THROUGHPUT")}


def inputs(names: Sequence[str], ids: Any, mask: Any) -> dict[str, Any]:
    """What a converted model wants of a batch.

    Raises:
        KeyError: it wants something else.
    """
    known = {"input_ids": ids, "attention_mask": mask, "position_ids": np.maximum(mask.cumsum(1) - 1, 0)}
    return {name: known[name] for name in names}


def main(kind: str, folder: str, fd: int) -> None:
    """Run what the parent asks for."""
    parent = ParentLines(fd)
    messages = parent.messages()
    wanted = next(messages)
    os.environ["OMP_NUM_THREADS"] = str(wanted["threads"])
    threads = wanted["threads"]
    is_openvino = kind != "transformers"
    ways = (
        openvino_ways(folder, threads, int8=kind.endswith("int8"))
        if is_openvino
        else transformers_ways(folder, threads)
    )
    peer = Peer(folder, ways, wanted)
    parent.answer({"version": version("openvino" if is_openvino else "transformers"), **peer.facts})
    for _ in messages:
        parent.answer(peer.run())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
