"""Train the demo model: a Qwen3 of 6.8 million parameters that writes like Shakespeare, in half an hour on 2 cores.

With this model a clone serves real text without a GPU and without a download, through every stage that a large model
uses: byte-level BPE, a chat template, grouped-query attention, an end-of-turn token. The text is small (1.1 MB), so
dropout, weight decay and windows that start at a random line work against overfitting, and only the best weights are
saved.

    python -m tools.train_demo_model --data tinyshakespeare.txt
"""

import bisect
import copy
import itertools
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path

import click
import tokenizers
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tools.demo_text import make_conversation, parse_speeches, split_text

VOCAB_SIZE = 2048
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# Qwen's split rule, but a newline never joins the punctuation before it. So the prompt `ROMEO:` ends where a token of
# the training text ends, and the model continues with the newline that it expects there.
WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEFAULT_OUT = Path(__file__).resolve().parent.parent / "common" / "demo_model"
CHAT_TEMPLATE = (DEFAULT_OUT / "chat_template.jinja").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Recipe:
    """The settings that decide the weights, together with the text and the number of threads."""

    seed: int
    steps: int
    tokens_per_step: int
    peak_lr: float
    dropout: float
    weight_decay: float
    chat_share: float = 0.3
    long_share: float = 0.25
    warmup_steps: int = 60
    eval_every: int = 100


def train_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE from the training text; all 256 bytes are in it, so that any string round-trips."""
    bpe = Tokenizer(models.BPE())
    split_words = pre_tokenizers.Split(tokenizers.Regex(WORD_PATTERN), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split_words, to_bytes])
    bpe.decoder = decoders.ByteLevel()
    specials = [END_OF_TEXT, TURN_START, TURN_END]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(text.splitlines(keepends=True), trainer)
    bpe.add_special_tokens(specials)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        chat_template=CHAT_TEMPLATE,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Make the untrained model: head_dim 64 because the GPU kernels want 64 or 128, two query heads per KV head."""
    end_of_text, turn_end = tokenizer.convert_tokens_to_ids([END_OF_TEXT, TURN_END])
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=end_of_text,
        eos_token_id=turn_end,
        pad_token_id=end_of_text,
    )
    model = Qwen3ForCausalLM(config)
    stops = {"bos_token_id": end_of_text, "eos_token_id": [turn_end, end_of_text], "pad_token_id": end_of_text}
    model.generation_config = GenerationConfig(**stops, do_sample=True, temperature=0.7, top_p=0.9)
    return model


def add_dropout(model: nn.Module, probability: float) -> None:
    """Drop embeddings and what each block adds to the residual. Qwen3 has no such dropout; hooks are not saved."""

    def drop(module: nn.Module, _args: tuple, output: Tensor) -> Tensor:
        return functional.dropout(output, probability, training=module.training)

    for name, module in model.named_modules():
        if name.endswith(("embed_tokens", "o_proj", "down_proj")):
            module.register_forward_hook(drop)


class Windows:
    """Draws training windows from one part of the text, as the play itself and as chats."""

    def __init__(self, text: str, tokenizer: PreTrainedTokenizerFast):
        lines = [tokenizer.encode(line) for line in text.splitlines(keepends=True)]
        self.tokens = [token for line in lines for token in line]
        self._line_starts = list(itertools.accumulate(map(len, lines), initial=0))
        self._speeches = parse_speeches(text)
        self._tokenizer = tokenizer

    def play(self, length: int, rng: random.Random) -> list[int]:
        """Tokens of the play from the start of a random line on, because prompts start with a line."""
        last = bisect.bisect_right(self._line_starts, len(self.tokens) - length)
        start = self._line_starts[rng.randrange(last)]
        return self.tokens[start : start + length]

    def chats(self, length: int, rng: random.Random) -> list[int]:
        """Tokens of whole conversations, one after the other; only the last one is cut off."""
        tokens: list[int] = []
        while len(tokens) < length:
            messages = make_conversation(self._speeches, rng)
            chat = self._tokenizer.apply_chat_template(messages, tokenize=False)
            tokens += self._tokenizer.encode(chat + END_OF_TEXT)
        return tokens[:length]

    def batch(self, recipe: Recipe, rng: random.Random) -> Tensor:
        """Return int64 [windows, window length]; the windows of a batch have one length, 512 or 1024 tokens."""
        length = 1024 if rng.random() < recipe.long_share else 512
        count = recipe.tokens_per_step // length
        draws = [self.chats if rng.random() < recipe.chat_share else self.play for _ in range(count)]
        return torch.tensor([draw(length, rng) for draw in draws])


def token_losses(model: nn.Module, windows: Tensor) -> Tensor:
    """Return float32 [windows * (length - 1)]: the loss in nats of each token but the first of each window."""
    logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten(), reduction="none")


@torch.inference_mode()
def mean_loss(model: nn.Module, tokens: list[int], window: int = 512) -> float:
    """Mean nats per token over all of `tokens`; a token sees only what precedes it in its window."""
    model.eval()
    # Windows overlap by one token: the last token of a window is the context of the next window's first prediction.
    pieces = [torch.tensor([tokens[i : i + window + 1]]) for i in range(0, len(tokens) - 1, window)]
    full = torch.cat(pieces[:-1]).split(8) if len(pieces) > 1 else ()
    total = sum(token_losses(model, batch).sum().item() for batch in [*full, pieces[-1]])
    return total / (len(tokens) - 1)


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """An AdamW that decays matrices and does not decay norms."""
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.peak_lr, betas=(0.9, 0.95), fused=True)


def lr_at(step: int, recipe: Recipe) -> float:
    """Linear warmup, then a cosine from the peak to a twentieth of it."""
    warm = min(1.0, (step + 1) / recipe.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * step / recipe.steps))
    return recipe.peak_lr * warm * (0.05 + 0.95 * cosine)


def save(model: Qwen3ForCausalLM, out: Path) -> None:
    """Write bf16 weights and the configuration, leaving the model in float32."""
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # transformers lets only the owner read it, and this file is shared


def train(model: Qwen3ForCausalLM, data: Windows, held_out: list[int], recipe: Recipe, out: Path) -> None:
    """Run every step and save whenever the held-out loss is the lowest so far."""
    rng = random.Random(recipe.seed)
    optimizer = make_optimizer(model, recipe)
    best, running, began = math.inf, 0.0, time.monotonic()
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, recipe)
        model.train()
        with torch.autocast("cpu", torch.bfloat16):
            loss = token_losses(model, data.batch(recipe, rng)).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running += loss.item()
        if (step + 1) % recipe.eval_every == 0 or step + 1 == recipe.steps:
            held_out_loss = mean_loss(model, held_out)
            train_loss, running = running / (step % recipe.eval_every + 1), 0.0
            losses = f"train {train_loss:.4f}  held out {held_out_loss:.4f}"
            mark = " (best, saved)" if held_out_loss < best else ""
            click.echo(f"step {step + 1}/{recipe.steps}  {losses}  {time.monotonic() - began:.0f} s{mark}")
            if held_out_loss < best:
                best = held_out_loss
                save(model, out)


def report(out: Path, held_out_text: str, seed: int) -> None:
    """Print the figures of the model card from the files as they were saved, and a sample of each kind."""
    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    data = Windows(held_out_text, tokenizer)
    loss = mean_loss(model, data.tokens)
    per_byte = loss * (len(data.tokens) - 1) / len(held_out_text.encode())
    chat_loss = mean_loss(model, data.chats(len(data.tokens), random.Random(seed)))
    click.echo(f"parameters {model.num_parameters()}  held-out tokens {len(data.tokens)}")
    click.echo(
        f"held-out loss {loss:.4f} nats/token = {per_byte:.4f} nats/byte = {per_byte / math.log(2):.4f} bits/byte"
        f"; as chats {chat_loss:.4f} nats/token"
    )
    chat = [{"role": "system", "content": "You are ROMEO."}, {"role": "user", "content": "What is love?"}]
    for prompt in ("ROMEO:", tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)):
        torch.manual_seed(seed)
        tokens = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=200)
        click.echo(f"--- sample\n{tokenizer.decode(tokens[0])}")


@click.command(help=__doc__)
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=DEFAULT_OUT, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--threads", default=2, show_default=True, help="Another number changes the rounding of sums.")
@click.option("--steps", default=1000, show_default=True)
@click.option("--tokens-per-step", default=4096, show_default=True)
@click.option("--peak-lr", default=2e-3, show_default=True)
@click.option("--dropout", default=0.2, show_default=True)
@click.option("--weight-decay", default=0.5, show_default=True)
def main(data: Path, out: Path, threads: int, **options: float) -> None:
    """Train, save and report."""
    recipe = Recipe(**options)
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(threads)
    torch.manual_seed(recipe.seed)
    click.echo(f"torch {torch.__version__}, transformers {transformers.__version__}, {threads} threads, {recipe}")
    began = time.monotonic()
    train_text, held_out_text = split_text(data.read_text(encoding="utf-8"))
    tokenizer = train_tokenizer(train_text)
    tokenizer.save_pretrained(out)
    windows, held_out = Windows(train_text, tokenizer), Windows(held_out_text, tokenizer)
    click.echo(f"training tokens {len(windows.tokens)}, held-out tokens {len(held_out.tokens)}")
    model = build_model(tokenizer)
    add_dropout(model, recipe.dropout)
    train(model, windows, held_out.tokens, recipe, out)
    click.echo(f"wall time {(time.monotonic() - began) / 60:.1f} min")
    report(out, held_out_text, recipe.seed)


if __name__ == "__main__":
    main()
