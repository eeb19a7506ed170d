"""The two kinds of MLP, dense and mixture of experts, as kernels compute them."""

from collections.abc import Callable

from executor_svc.model.activations import Activations
from executor_svc.model.config import MoeConfig
from executor_svc.model.kernel_set import KernelSet
from executor_svc.model.prepared import Weights
from kernels.arguments import ExpertLayer

RunMlp = Callable[[Activations], None]
"""From `normed` to `projected`."""


def run_mlp(weights: Weights, layer: int, kernels: KernelSet) -> RunMlp:
    """The MLP of a layer, of the kind that the configuration says."""
    moe, prefix = weights.layout.config.moe, f"layers.{layer}."
    if moe is not None and layer in moe.sparse_layers:
        return _mixture(weights, prefix, moe, kernels)
    return _dense(weights, prefix, kernels)


def _dense(weights: Weights, prefix: str, kernels: KernelSet) -> RunMlp:
    """One SwiGLU (Shazeer 2020, arXiv:2002.05202) that computes every token.

    Its weights are gate_up [2 * intermediate, hidden], gate over up, and down [hidden, intermediate].
    """
    gated_projection = kernels.gated_projection(weights.matrix(f"{prefix}gate_up"))
    projection = kernels.projection(weights.matrix(f"{prefix}down"), None)

    def run(space: Activations) -> None:
        gated_projection(space.normed, space.gate_up, space.gated)
        projection(space.gated, space.projected)

    return run


def _mixture(weights: Weights, prefix: str, config: MoeConfig, kernels: KernelSet) -> RunMlp:
    """A mixture of experts (Fedus et al. 2021, arXiv:2101.03961): a router chooses a few SwiGLUs for each token.

    Its weights are router [experts, hidden], the same on every rank, so that all choose the same experts;
    experts_gate_up [experts, 2 * intermediate, hidden], gate over up; experts_down [experts, hidden, intermediate].
    """
    route = kernels.projection(weights.matrix(f"{prefix}router"), None)
    gate_up, down = (weights.tensor(f"{prefix}experts_{name}") for name in ("gate_up", "down"))
    experts = ExpertLayer(gate_up, down, config.num_chosen, config.renormalized)

    def run(space: Activations) -> None:
        route(space.normed, space.router_logits)
        kernels.mix_experts(space.normed, space.router_logits, experts, space.projected)

    return run
