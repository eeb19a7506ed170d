"""From options to an executor that can take a plan at once."""

import os
import time
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch

from common import messages as m
from common.errors import BatonError, CheckpointError, TryAgainError
from common.grammars import grammar_library
from common.logging import get_logger
from common.model_files import model_name
from common.plan import ExecutorLimits
from common.release import BUILD
from common.vocabulary import token_of, tokenizer_hash
from executor_svc.devices.choose_platform import choose_platform
from executor_svc.devices.kept_cache import KeptCache, room_was_made
from executor_svc.devices.platform import Platform
from executor_svc.devices.pool_size import blocks_in, choose_max_model_len, choose_num_blocks
from executor_svc.keeper.kept_pool import KeptPool
from executor_svc.keeper.link import KeeperLink
from executor_svc.model.attention import CacheMemory, KVGeometry
from executor_svc.model.checkpoint import HEAD, TensorSource, has_other_head, stored_dtype
from executor_svc.model.checkpoint_layout import SCORE
from executor_svc.model.config import DecoderConfig
from executor_svc.model.draw import TokenDraw, WholeDraw
from executor_svc.model.found_model import FoundModel, find_model
from executor_svc.model.gguf_checkpoint import open_checkpoint
from executor_svc.model.kept_weights import LoadedWeights, WeightKeeper, WeightStore, obtain_weights
from executor_svc.model.model import Decoder
from executor_svc.model.prepared import WeightLayout
from executor_svc.model.rank_group import RankGroup, join_group, smallest
from executor_svc.model.sharding import Shard
from executor_svc.model.vocab_parallel import VocabParallelDraw
from executor_svc.options import ExecutorOptions
from executor_svc.runner.grammar_masks import MASK_MAY_TAKE_S, GrammarMasks, load_grammar_masks
from executor_svc.runner.runner import Runner

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

log = get_logger("executor")


@dataclass(frozen=True)
class LoadedModel:
    """A model's weights, or a rank's part of them; how they are computed with, as `Hello.dtype` says it; the tasks that
    are taken; its tokenizer's hash, and masks by its tokens."""

    loaded: LoadedWeights
    computation: str
    tasks: tuple[m.Task, ...]
    tokenizer: str
    grammars: GrammarMasks | None

    @property
    def config(self) -> DecoderConfig:
        """Of the whole model."""
        return self.loaded.weights.layout.config

    @property
    def shard(self) -> Shard:
        """This rank's part."""
        return self.loaded.weights.layout.shard

    @property
    def dtype(self) -> torch.dtype:
        """Of activations, and of weights that are not quantized."""
        return self.loaded.weights.layout.dtype


@dataclass(frozen=True)
class Started:
    """An executor that can take a plan at once; a standby that could if it had a pool.

    Attributes:
        runner: runs plans.
        hello: what to tell a scheduler about it.
        group: its ranks.
        pool: the runner's memory, if a keeper keeps it.
        is_standby: whether another executor has that memory still; then there is a pool.
    """

    runner: Runner[Any]
    hello: m.Hello
    group: RankGroup
    pool: KeptPool | None
    is_standby: bool

    def hello_after(self, start_s: float) -> m.Hello:
        """The Hello of an executor whose start took so long; a standby has its pool by now."""
        pool = None if self.pool is None else self.pool.named
        return msgspec.structs.replace(self.hello, start_s=start_s, pool=pool)


def start_executor(
    options: ExecutorOptions,
    weight_keeper: WeightKeeper | None = None,
    pool_keeper: KeeperLink | None = None,
    found: FoundModel | None = None,
) -> Started:
    """Load the model, take or allocate the pool, warm up. In a group, every rank does so at the same time.

    Args:
        options: the operator's.
        weight_keeper: keeps the weights; None to keep none.
        pool_keeper: keeps the pool, likewise.
        found: the model of these options; None to look for it.

    Raises:
        CheckpointError: the model cannot be served.
        TryAgainError: memory runs out.
        BatonError: the options contradict the model or the machine.
    """
    platform = choose_platform(options)
    try:
        return _start(options, platform, weight_keeper, pool_keeper, found)
    except RuntimeError as error:
        # torch.OutOfMemoryError of device memory; the same words in another RuntimeError of pinned memory
        if not any(words in str(error) for words in ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")):
            raise
        said = f"memory runs out while the executor starts, see --gpu-memory-utilization: {str(error).splitlines()[0]}"
        if pool_keeper is not None and room_was_made(platform, pool_keeper):
            said += "; what no executor uses had some, which is dropped: start again"
        raise TryAgainError(said) from error  # other processes on the GPU may have had it, and end


def _start(
    options: ExecutorOptions,
    platform: Platform,
    weight_keeper: WeightKeeper | None,
    pool_keeper: KeeperLink | None,
    found: FoundModel | None,
) -> Started:
    group = join_group(platform.device)
    model = _load_model(options, platform, group, weight_keeper, found)
    geometry = KVGeometry(
        num_layers=model.config.num_layers,
        num_kv_heads=model.shard.num_kv_heads,
        head_dim=model.config.head_dim,
        block_size=platform.block_size(model.config, model.dtype, options.block_size),
        dtype=model.dtype,
    )
    layout = platform.kv_layout(geometry) + (f"@{options.place}" if options.place else "")
    kind = m.PoolKind(fingerprint=model.loaded.fingerprint, dtype=model.computation, layout=layout)
    kept_cache = KeptCache.on(platform, pool_keeper, kind, geometry, group, standby=options.standby)
    if kept_cache is not None:
        options = _with_kept_size(options, kept_cache)
    limits = _choose_limits(options, platform, model, geometry, group)
    pool_bytes = limits.num_blocks * geometry.block_bytes
    pool = {"blocks": limits.num_blocks, "block_size": limits.block_size, "gib": round(pool_bytes / 2**30, 3)}
    pool["token_bytes"] = geometry.block_bytes // geometry.block_size
    log.info("pool", **pool, room=limits.room, max_model_len=limits.max_model_len, max_num_seqs=limits.max_num_seqs)
    memory_left = platform.memory_left()
    memory = None if kept_cache is None else kept_cache.memory(limits.num_blocks)
    kept = None if memory is None else memory.pool
    is_standby = kept_cache is not None and kept_cache.is_standby
    takes_memory = not is_standby and (kept is None or kept.is_new)
    if takes_memory and pool_bytes > memory_left:  # a host grants it, and kills the process once the pool is filled
        log.warning("the pool is larger than the memory", available_gib=round(memory_left / 2**30, 3))
    runner = make_runner(platform, model, geometry, limits, group, memory)
    runner.warm_up()
    hello = m.Hello(
        executor=options.name,
        build=BUILD,
        fingerprint=model.loaded.fingerprint,
        dtype=model.computation,
        device=platform.description if group.size == 1 else f"{group.size} x {platform.description}"[:128],
        pid=os.getpid(),
        tokenizer=model.tokenizer,
        grammars="" if model.grammars is None else grammar_library(),
        start_s=0.0,
        pool=None,
        node=options.node,
        **vars(limits),
    )
    return Started(runner, hello, group, kept, is_standby)


def _with_kept_size(options: ExecutorOptions, kept_cache: KeptCache) -> ExecutorOptions:
    """Options with the size of the pool to go on with, if the operator chose none."""
    num_blocks = options.num_blocks or 0
    if not num_blocks and options.kv_cache_memory_gib is not None:
        num_blocks = blocks_in(options.kv_cache_memory_gib, kept_cache.geometry)
    if kept_cache.is_standby and num_blocks:  # it need not wait for a pool to know its size
        return options
    found = kept_cache.find(num_blocks)
    return options if num_blocks else replace(options, num_blocks=found or None)


def _choose_limits(
    options: ExecutorOptions, platform: Platform, model: LoadedModel, geometry: KVGeometry, group: RankGroup
) -> ExecutorLimits:
    """What plans may ask for; the size of the pool may take a trial run to find out."""
    max_num_seqs = options.max_num_seqs or platform.defaults.max_num_seqs
    wanted_len = options.max_model_len or model.config.max_positions
    trial = ExecutorLimits(
        num_blocks=1,
        block_size=geometry.block_size,
        max_num_seqs=max_num_seqs,
        max_batch_tokens=options.max_batch_tokens or platform.defaults.max_batch_tokens,
        max_model_len=wanted_len,
        vocab_size=model.config.vocab_size,
        hidden_size=model.config.hidden_size,
        tasks=model.tasks,
    )

    def default_bytes() -> int:
        useful_blocks = max_num_seqs * -(-wanted_len // geometry.block_size)
        return platform.default_pool_bytes(
            useful_blocks * geometry.block_bytes,
            lambda: make_runner(platform, model, geometry, trial, group).run_largest_step(),
        )

    num_blocks = choose_num_blocks(
        geometry,
        num_blocks=options.num_blocks,
        memory_gib=options.kv_cache_memory_gib,
        default_bytes=default_bytes,
    )
    num_blocks = smallest(group, num_blocks, platform.device)
    max_model_len = choose_max_model_len(
        options.max_model_len, model.config.max_positions, num_blocks, geometry.block_size
    )
    return replace(trial, num_blocks=num_blocks, max_model_len=max_model_len)


def make_runner(
    platform: Platform,
    model: LoadedModel,
    geometry: KVGeometry,
    limits: ExecutorLimits,
    group: RankGroup,
    memory: CacheMemory | None = None,
) -> Runner[Any]:
    """Put a model's weights, the device's kernels and a KV cache of `limits` together.

    Args:
        platform: whose `block_size` has been asked.
        memory: of the cache, see `new_cache`.

    Raises:
        BatonError: the kernels cannot serve the model, or the cache does not fit.
    """
    kernels = platform.kernels(model.config, model.shard, limits, model.dtype)
    backend = platform.attention(model.shard, geometry, limits, memory)
    forward = Decoder(
        model.loaded.weights,
        kernels,
        backend,
        max_model_len=limits.max_model_len,
        max_batch_tokens=limits.max_batch_tokens,
        max_num_seqs=limits.max_num_seqs,
        group=group,
    )
    rows = -(-limits.max_num_seqs // group.size)
    whole = WholeDraw(kernels, rows, limits.vocab_size, platform.device)
    draw: TokenDraw = whole
    if group.size > 1:
        draw = VocabParallelDraw(
            whole, group, model.shard, limits.vocab_size, limits.max_num_seqs, model.dtype, platform.device
        )
    decode_sizes = platform.decode_sizes(min(limits.max_num_seqs, limits.max_batch_tokens))
    token_sizes = platform.token_sizes(model.shard.layer_products(model.config), limits.max_batch_tokens)
    warm_up_lengths = kernels.warm_up_lengths(limits.max_batch_tokens)
    sizes = (decode_sizes, token_sizes, warm_up_lengths)
    return Runner(forward, draw, backend, limits, platform.device, *sizes, model.grammars)


def _load_model(
    options: ExecutorOptions,
    platform: Platform,
    group: RankGroup,
    keeper: WeightKeeper | None,
    found: FoundModel | None,
) -> LoadedModel:
    start = time.monotonic()
    found = found or find_model(options)
    folder, config, tasks = found.folder, found.config, found.tasks
    # Before the platform chooses kernels: it binds threads. Ranks wait for all masks, so as to agree which are late.
    may_take_s = MASK_MAY_TAKE_S if group.size == 1 else None
    grammars = load_grammar_masks(folder, config.vocab_size, may_take_s)
    with open_checkpoint(folder) as checkpoint:
        config = _with_stored_head(config, checkpoint, tasks, group)
        dtype, is_quantized = _choose_dtype(options, platform, checkpoint, config), checkpoint.is_quantized
        shard = Shard.of(config, group.rank, group.size)
        layout = WeightLayout(config, shard, dtype, platform.packing(config, dtype), has_head=tasks != ("embed",))
        loaded = obtain_weights(
            checkpoint,
            layout,
            platform.device,
            group,
            _weight_store(platform, keeper),
            quantization=options.quantization,
            verify=options.verify_weights,
        )
    log.info(
        "model loaded",
        model=model_name(options.model),
        seconds=round(time.monotonic() - start, 2),
        weights="kept" if loaded.kept else "read",
        parameters=layout.num_parameters,
        dtype=str(dtype).removeprefix("torch."),
        quantization=options.quantization,
        device=platform.description,
        ranks=group.size,
        fingerprint=loaded.fingerprint,
        tasks=",".join(tasks),
    )
    computation = _computation(dtype, options.quantization, is_quantized=is_quantized)
    return LoadedModel(loaded, computation, tasks, tokenizer_hash(folder), grammars)


def _computation(dtype: torch.dtype, quantization: str, *, is_quantized: bool) -> str:
    """Name how a model is computed: as long as that stays, equal weights give equal tokens.

    Args:
        is_quantized: whether weights are stored in GGUF's integers. They are expanded to `dtype` when they are read; to
            compute with the integers will have another name.
    """
    further = ("gguf",) * is_quantized + (quantization,) * (quantization != "none")
    return "-".join((str(dtype).removeprefix("torch."), *further))


def _with_stored_head(
    config: DecoderConfig, checkpoint: TensorSource, tasks: tuple[m.Task, ...], group: RankGroup
) -> DecoderConfig:
    """The configuration with the head that the checkpoint has, as transformers decides it.

    Raises:
        CheckpointError: as `_score_token` and `has_other_head` do.
    """
    if SCORE in checkpoint.names:
        return msgspec.structs.replace(config, tied=False, score_token=_score_token(config, checkpoint, tasks))
    if config.tied and has_other_head(checkpoint, config, group):
        log.warning("not tied: lm_head.weight differs from the embedding")
        return msgspec.structs.replace(config, tied=False)
    if tasks == ("embed",) and HEAD not in checkpoint.names:
        return msgspec.structs.replace(config, tied=True)  # it has no head, and needs none
    return config


def _score_token(config: DecoderConfig, checkpoint: TensorSource, tasks: tuple[m.Task, ...]) -> int:
    """The token whose logit is the score of a classifier.

    Raises:
        CheckpointError: the classifier is to generate, though config.json may not call it one; it has several labels;
            or the model has no token for a yes.
    """
    folder, (shape, _) = checkpoint.folder, checkpoint.header(SCORE)
    if "generate" in tasks:
        raise CheckpointError(
            f"{folder} has {SCORE}, a classifier's, which generates nothing: take it with --task score"
        )
    if shape != (1, config.hidden_size):
        label = f"a classifier of one label, [1, {config.hidden_size}], can be served"
        raise CheckpointError(f"{folder} has {SCORE} of shape {list(shape)}, and only {label}")
    token = token_of(folder, "yes")
    if not 0 <= token < config.vocab_size:
        raise CheckpointError(
            f"{folder / 'tokenizer.json'} has token {token} for 'yes', beyond the model's last one, "
            f"{config.vocab_size - 1}"
        )
    return token


def _weight_store(platform: Platform, keeper: WeightKeeper | None) -> WeightStore | None:
    """Where weights outlive the process, if there is such a place."""
    if keeper is None:
        return None
    try:
        return WeightStore(keeper, platform.weight_memories())
    except BatonError as error:
        log.warning("weights cannot be shared", reason=str(error))
        return None


def _choose_dtype(
    options: ExecutorOptions, platform: Platform, checkpoint: TensorSource, config: DecoderConfig
) -> torch.dtype:
    if options.dtype != "auto":
        return DTYPES[options.dtype]
    if options.model is None and platform.device.type == "cpu":
        return torch.float32  # the demo model is small; like this its tokens are the same on every machine
    return stored_dtype(checkpoint, config)
