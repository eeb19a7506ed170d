"""What an operator can choose about an executor."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ExecutorOptions:
    """None leaves a choice to the executor, which takes it by the model and the device.

    Attributes:
        name: in the fleet.
        node: the machine, as a cluster calls it.
        place: of several on a machine: a pool is continued in the same place only. Empty for none.
        model: folder, GGUF file or hub id; None is the embedded demo model.
        dtype: of weights, activations and KV cache: `auto`, `float32`, `bfloat16` or `float16`.
        tasks: that it takes, `generate`, `embed` or `score`; none leaves them to the model's folder (`choose_tasks`).
        quantization: of the layers' and the output's matrices, `none` or `int8`; the checkpoint's are quantized at the
            start. Their inputs are quantized step by step.
        device: `auto`, `cpu` or `cuda`; auto is a GPU if there is one.
        attention: on a GPU: `auto`, `flash_attn` or `triton`; auto is flash-attn where it is installed and
            takes the model.
        block_size: positions in a KV block.
        num_blocks: in the KV pool.
        kv_cache_memory_gib: GiB for the KV pool, if num_blocks is None.
        gpu_memory_utilization: share of a GPU's memory for this executor, the pool being what is left of it.
        max_num_seqs: rows in a plan.
        max_batch_tokens: tokens in a plan.
        max_model_len: positions in a sequence; None is the model's own limit, or the pool if that is smaller.
        enforce_eager: on a GPU: no CUDA graphs.
        standby: whether it waits for the pool of another executor, and has none of its own: `never`, `always`, or
            `auto`, if the keeper finds that executors of its kind have no standby.
        threads: of a CPU to compute with; None is one for each CPU that this process may use, or has the quota for.
        pin_threads: bind each thread to a CPU, if there are as many threads as CPUs. Threads that the process starts
            later run on the main thread's CPU, so this is for processes that do nothing else.
        verify_weights: read and hash the checkpoint even if the weights that were read from its files are kept.
    """

    name: str = "executor"
    node: str = ""
    place: str = ""
    model: str | None = None
    tasks: tuple[str, ...] = ()
    dtype: str = "auto"
    quantization: str = "none"
    device: str = "auto"
    attention: str = "auto"
    block_size: int | None = None
    num_blocks: int | None = None
    kv_cache_memory_gib: float | None = None
    gpu_memory_utilization: float = 0.9
    max_num_seqs: int | None = None
    max_batch_tokens: int | None = None
    max_model_len: int | None = None
    enforce_eager: bool = False
    standby: str = "never"
    threads: int | None = None
    pin_threads: bool = False
    verify_weights: bool = False
