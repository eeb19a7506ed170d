"""The reciter's weights, in closed form: a Qwen3 of one layer.

The residual stream has a slot for each thing that the reciter has to know (`Layout`). Tokens that matter have codes of
+1 and -1 as embeddings. The attention heads fill slots: three copy the codes of the tokens before (each attends to one
distance, which rotary embedding can tell exactly), and four look for the latest token of some: of the words that choose
an answer; of those that say that tools are shown; of words and ends of tools' results; of beginnings of messages and
ends of calls. Each neuron of the MLP is one state (`states.py`): its gate opens if all slots match, and it writes the
code of the token that follows. The output projection is the embedding table, so that token's logit is far above all
others.
"""

import itertools
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.reciter.states import NUM_SEEN, State, States
from tests.support.reciter.tokenizer import VOCAB_SIZE

HIDDEN = 128
HEAD_DIM = 32
CODE_SIZE, CODE_DISTANCE = 24, 4  # places of a code, and in how many of them two codes differ at least
WORD_SIZE, WORD_DISTANCE = 12, 3
MAX_POSITIONS = 16_384
THETA = 1e6
NEAR = range(6)  # pairs of dimensions that turn fast: they tell neighbouring positions apart
LATER, KIND = 11, 15  # a pair that turns by 71 degrees in MAX_POSITIONS, and one that does not turn
NEAR_SCALE, FAR_SCALE = 60.0, 150.0
GATE, WRITE, FALLBACK = 40.0, 1e4, 100.0
FIRST, SECOND = 1.25, 1.0  # the token that follows, and the one for where a grammar forbids it, which comes right after


_SEEN = tuple(slice(i * CODE_SIZE, (i + 1) * CODE_SIZE) for i in range(NUM_SEEN))


class Layout(NamedTuple):
    """Places in the residual stream."""

    seen: tuple[slice, ...] = _SEEN
    word: slice = slice(NUM_SEEN * CODE_SIZE, NUM_SEEN * CODE_SIZE + WORD_SIZE)
    has_word: int = 108
    shown: int = 109
    result: int = 110
    is_word: int = 111
    is_shown: int = 112
    is_result: int = 113
    called: int = 114
    is_start: int = 115
    is_call_end: int = 116
    one: int = 127  # the same for every token


LAYOUT = Layout()


@dataclass(frozen=True)
class Special:
    """Tokens that say what is due.

    Attributes:
        words: choose an answer.
        shown: stands in front of tools.
        results: say that a tool's result has come.
        start: begins a message.
        call_end: ends a call.
    """

    words: tuple[int, ...]
    shown: int
    results: tuple[int, ...]
    start: int
    call_end: int


def write_weights(folder: Path, states: States, special: Special, filler: int) -> None:
    """Write model.safetensors. `filler` is the token that is written where no answer is due."""
    followers = {*states.first.values(), *states.second.values(), filler}
    coded = followers | {token for state in [*states.first, *states.second] for token in state.seen}
    draws = (_codes(sorted(coded), CODE_SIZE, CODE_DISTANCE, seed) for seed in itertools.count())
    codes = next(codes for codes in draws if _are_second(states, codes))
    words = _codes(special.words, WORD_SIZE, WORD_DISTANCE)
    embedding = torch.zeros(VOCAB_SIZE, HIDDEN)
    embedding[:, LAYOUT.one] = 1.0
    for token, code in codes.items():
        embedding[token, LAYOUT.seen[0]] = code
    for token, code in words.items():
        embedding[token, LAYOUT.word] = code
        embedding[token, LAYOUT.is_word] = 1.0
    embedding[special.shown, LAYOUT.is_shown] = 1.0
    embedding[list(special.results), LAYOUT.is_result] = 1.0
    embedding[special.start, LAYOUT.is_start] = 1.0
    embedding[special.call_end, LAYOUT.is_call_end] = 1.0
    ones = torch.ones(HIDDEN)
    tensors = {
        "model.embed_tokens.weight": embedding.to(torch.bfloat16),  # whole numbers: nothing is lost
        "model.norm.weight": 10.0 * ones,
        "model.layers.0.input_layernorm.weight": ones.clone(),
        "model.layers.0.post_attention_layernorm.weight": ones.clone(),
        **{f"model.layers.0.self_attn.{name}.weight": tensor for name, tensor in _attention().items()},
        **{f"model.layers.0.mlp.{name}.weight": tensor for name, tensor in _mlp(states, codes, words, filler).items()},
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    _write_config(folder, intermediate_size=len(tensors["model.layers.0.mlp.gate_proj.weight"]))


def _codes(tokens: Iterable[int], size: int, distance: int, seed: int = 0) -> dict[int, Tensor]:
    """Random codes of +1 and -1, any two of which differ in `distance` places or more."""
    draw = random.Random(seed)
    found: dict[int, int] = {}
    for token in tokens:
        while True:
            code = draw.getrandbits(size)
            if all((code ^ other).bit_count() >= distance for other in found.values()):
                break
        found[token] = code
    return {
        token: torch.tensor([1.0 if code >> place & 1 else -1.0 for place in range(size)])
        for token, code in found.items()
    }


def _attention() -> dict[str, Tensor]:
    """Projections and norms of all heads."""
    heads = [_head_of_distance(distance) for distance in range(1, NUM_SEEN)]
    heads += [
        _head_of_latest([LAYOUT.is_word], [(LAYOUT.word, LAYOUT.word), (LAYOUT.is_word, LAYOUT.has_word)], WORD_SIZE),
        _head_of_latest([LAYOUT.is_shown], [(LAYOUT.is_shown, LAYOUT.shown)], 0),
        _head_of_latest([LAYOUT.is_word, LAYOUT.is_result], [(LAYOUT.is_result, LAYOUT.result)], 0),
        _head_of_latest([LAYOUT.is_start, LAYOUT.is_call_end], [(LAYOUT.is_call_end, LAYOUT.called)], CODE_SIZE),
    ]
    scale = torch.empty(HEAD_DIM // 2)
    scale[:], scale[list(NEAR)] = FAR_SCALE, NEAR_SCALE
    return {
        **{f"{name}_proj": torch.cat([head[name] for head in heads]) for name in "qkv"},
        "o_proj": torch.cat([head["o"] for head in heads], dim=1),
        "q_norm": scale.repeat(2),
        "k_norm": scale.repeat(2),
    }


def _head_of_distance(distance: int) -> dict[str, Tensor]:
    """Copies the code of the token that stands `distance` before."""
    query, key = torch.zeros(HEAD_DIM, HIDDEN), torch.zeros(HEAD_DIM, HIDDEN)
    for pair in NEAR:
        angle = torch.tensor(distance * _frequency(pair))
        # The score turns with the distance between query and key; this puts its peak at `distance`.
        query[pair, LAYOUT.one], query[pair + HEAD_DIM // 2, LAYOUT.one] = angle.cos(), -angle.sin()
        key[pair, LAYOUT.one] = 1.0
    value, output = _copy([(LAYOUT.seen[0], LAYOUT.seen[distance])], _rms(CODE_SIZE + 1))
    return {"q": 100 * query, "k": 100 * key, "v": value, "o": output}


def _head_of_latest(
    kinds: list[int], copied: list[tuple[slice | int, slice | int]], code_size: int
) -> dict[str, Tensor]:
    """Copies from the latest of the tokens that have one of `kinds`; others, which have nothing to copy, score less."""
    query, key = torch.zeros(HEAD_DIM, HIDDEN), torch.zeros(HEAD_DIM, HIDDEN)
    half = HEAD_DIM // 2
    angle = torch.tensor(0.3)  # where a cosine falls with the distance
    query[KIND, LAYOUT.one] = 1.0
    query[LATER, LAYOUT.one], query[LATER + half, LAYOUT.one] = angle.cos(), angle.sin()
    key[KIND, LAYOUT.one] = -1.0
    for kind in kinds:
        key[KIND, kind] = 2.0
        key[LATER, kind] = 1.0
    value, output = _copy(copied, _rms(code_size + 2))
    return {"q": 100 * query, "k": 100 * key, "v": value, "o": output}


def _copy(copied: list[tuple[slice | int, slice | int]], rms: float) -> tuple[Tensor, Tensor]:
    """Value and output projections that copy places of an embedding to other places; `rms` undoes its norm."""
    value, output = torch.zeros(HEAD_DIM, HIDDEN), torch.zeros(HIDDEN, HEAD_DIM)
    row = 0
    for source, target in copied:
        sources, targets = ([p] if isinstance(p, int) else list(range(p.start, p.stop)) for p in (source, target))
        for one, other in zip(sources, targets, strict=True):
            value[row, one], output[other, row] = rms, 1.0
            row += 1
    return value, output


def _rms(num_places: int) -> float:
    """Of an embedding that has +1 or -1 in so many places."""
    return float((num_places / HIDDEN) ** 0.5)


def _frequency(pair: int) -> float:
    return float(THETA ** (-2 * pair / HEAD_DIM))


def _mlp(states: States, codes: dict[int, Tensor], words: dict[int, Tensor], filler: int) -> dict[str, Tensor]:
    """A neuron for each state, and one that is always open."""
    everything = [(state, token, FIRST) for state, token in states.first.items()]
    everything += [(state, token, SECOND) for state, token in states.second.items()]
    gate = torch.zeros(len(everything) + 1, HIDDEN)
    down = torch.zeros(HIDDEN, len(gate))
    for row, (state, token, amount) in enumerate(everything):
        gate[row] = GATE * _match(state, codes, words)
        down[LAYOUT.seen[0], row] = amount * WRITE * codes[token]
    gate[-1, LAYOUT.one] = 1.0
    down[LAYOUT.seen[0], -1] = FALLBACK * codes[filler]
    up = torch.zeros_like(gate)
    up[:, LAYOUT.one] = 1.0
    return {"gate_proj": gate, "up_proj": up, "down_proj": down}


def _are_second(states: States, codes: dict[int, Tensor]) -> bool:
    """Whether no token but the first is likelier than the second: codes are random, and some are near each other."""
    pairs = {(states.first[state], token) for state, token in states.second.items()}
    written = [(FIRST * codes[first] + SECOND * codes[second], [first, second]) for first, second in pairs]
    return all(
        sorted(codes, key=lambda token: float(total @ codes[token]), reverse=True)[:2] == expected
        for total, expected in written
    )


def _match(state: State, codes: dict[int, Tensor], words: dict[int, Tensor]) -> Tensor:
    """What is positive where all slots hold what the state says, and negative elsewhere."""
    row = torch.zeros(HIDDEN)
    most = 0.0
    for slot, token in zip(LAYOUT.seen, state.seen, strict=False):
        row[slot] = codes[token]
        most += CODE_SIZE
    situation = state.situation
    if situation.word is None:
        row[LAYOUT.has_word] = -2 * CODE_DISTANCE
    else:
        row[LAYOUT.word] = words[situation.word]
        row[LAYOUT.has_word] = CODE_SIZE
        most += WORD_SIZE + CODE_SIZE
    flags = (LAYOUT.shown, situation.tools), (LAYOUT.result, situation.result), (LAYOUT.called, state.called)
    for place, wanted in flags:
        if wanted is not None:
            row[place] = 2 * CODE_DISTANCE if wanted else -2 * CODE_DISTANCE
            most += 2 * CODE_DISTANCE * wanted
    row[LAYOUT.one] = -(most - WORD_DISTANCE)
    return row


def _write_config(folder: Path, intermediate_size: int) -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "float32",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": NUM_SEEN + 3,
        "num_key_value_heads": NUM_SEEN + 3,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": 151_643,
        "eos_token_id": 151_645,
    }
    defaults = {
        "do_sample": True,
        "eos_token_id": [151_645, 151_643],
        "pad_token_id": 151_643,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "generation_config.json").write_text(json.dumps(defaults, indent=2))
