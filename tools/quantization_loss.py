"""What bfloat16 and int8 cost a model: its scores for a text, compared with those in float32.

    python -m tools.quantization_loss --text tinyshakespeare.txt
    python -m tools.quantization_loss --model Qwen/Qwen3-0.6B --text my-domain.txt

It computes windows of the end of the text on a CPU, each window by itself, and prints a line for each format: the
perplexity of the text, the Kullback-Leibler divergence from float32 in nats a token, and the share of tokens for which
the likeliest next token is the same as in float32.
"""

from pathlib import Path

import click
import torch
from tokenizers import Tokenizer
from torch import Tensor

from common.logging import setup_logging
from common.model_files import resolve_model
from tests.executor_svc.harness import Pool, Row, logits, start

BLOCK_SIZE = 16
FORMATS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
}


def log_probs(model: Path, windows: list[list[int]], options: dict[str, str]) -> list[Tensor]:
    """Log-probabilities of every token to follow each token of a window, float32 [tokens, vocab] for each window."""
    length = len(windows[0])
    num_blocks = -(-length // BLOCK_SIZE)
    sizes = {"num_blocks": num_blocks, "block_size": BLOCK_SIZE, "max_batch_tokens": length, "threads": None}
    runner, limits = start(model, poison=False, **sizes, **options)
    table = Pool(num_blocks, BLOCK_SIZE).grow([], length)
    return [logits(runner, [Row(0, window, length, table)], limits).log_softmax(-1) for window in windows]


@click.command()
@click.option("--model", help="Folder or hub id.  [default: the embedded demo model]")
@click.option("--text", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--num-windows", default=16, show_default=True, type=click.IntRange(1))
@click.option("--window", default=1024, show_default=True, type=click.IntRange(2), help="Tokens of a window.")
def main(model: str | None, text: Path, num_windows: int, window: int) -> None:
    """Measure what each format costs the model, and print the figures."""
    setup_logging("executor", "warning")
    folder = resolve_model(model, weights=True)
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text.read_text(), add_special_tokens=False).ids
    if len(tokens) < num_windows * window:
        raise click.UsageError(f"{text} has {len(tokens)} tokens, too few for {num_windows} windows of {window}")
    first = len(tokens) - num_windows * window
    windows = [tokens[at : at + window] for at in range(first, len(tokens), window)]
    exact: list[Tensor] = []
    for name, options in FORMATS.items():
        scores = log_probs(folder, windows, options)
        exact = exact or scores
        pairs = list(zip(exact, scores, strict=True))
        following = [torch.tensor(window[1:])[:, None] for window in windows]
        loss = -torch.cat([score[:-1].gather(1, ids) for score, ids in zip(scores, following, strict=True)]).mean()
        divergence = torch.cat([(one.exp() * (one - other)).sum(-1) for one, other in pairs]).mean()
        same = torch.cat([one.argmax(-1) == other.argmax(-1) for one, other in pairs]).float().mean()
        print(f"{name:9} perplexity {loss.exp():.3f}  divergence {divergence:.6f}  same likeliest token {same:.4f}")


if __name__ == "__main__":
    main()
