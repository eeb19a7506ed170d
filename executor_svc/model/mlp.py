"""The two kinds of MLP, dense and mixture of experts: their parameters, and how kernels compute them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from executor_svc.model.activations import Activations
from executor_svc.model.config import MoeConfig
from executor_svc.model.kernel_set import KernelSet
from kernels.arguments import ExpertLayer

RunMlp = Callable[[Activations], None]
"""From `normed` to `projected`."""


@dataclass(frozen=True)
class DenseMlp:
    """One SwiGLU (Shazeer 2020, arXiv:2002.05202) that computes every token.

    Attributes:
        gate_up: [2 * intermediate, hidden], gate over up.
        down: [hidden, intermediate].
    """

    gate_up: Tensor
    down: Tensor

    @classmethod
    def empty(cls, hidden: int, intermediate: int, dtype: torch.dtype, device: torch.device) -> "DenseMlp":
        """Uninitialised parameters."""
        return cls(
            gate_up=torch.empty((2 * intermediate, hidden), dtype=dtype, device=device),
            down=torch.empty((hidden, intermediate), dtype=dtype, device=device),
        )

    def on(self, kernels: KernelSet) -> RunMlp:
        """The MLP as these kernels compute it; they own the matrices from now on."""
        gated_projection, projection = kernels.gated_projection(self.gate_up), kernels.projection(self.down, None)

        def run(space: Activations) -> None:
            gated_projection(space.normed, space.gate_up, space.gated)
            projection(space.gated, space.projected)

        return run

    def tensors(self) -> tuple[Tensor, ...]:
        """All parameters."""
        return (self.gate_up, self.down)


@dataclass(frozen=True)
class MoeMlp:
    """A mixture of experts (Fedus et al. 2021, arXiv:2101.03961): a router chooses a few SwiGLUs for each token.

    Attributes:
        config: how they are chosen.
        router: [experts, hidden]; the same on every rank, so that all choose the same experts.
        gate_up: [experts, 2 * intermediate, hidden], gate over up.
        down: [experts, hidden, intermediate].
    """

    config: MoeConfig
    router: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def empty(
        cls, config: MoeConfig, hidden: int, intermediate: int, dtype: torch.dtype, device: torch.device
    ) -> "MoeMlp":
        """Uninitialised parameters; `intermediate` is this rank's part of an expert."""
        num_experts = config.num_experts
        return cls(
            config=config,
            router=torch.empty((num_experts, hidden), dtype=dtype, device=device),
            gate_up=torch.empty((num_experts, 2 * intermediate, hidden), dtype=dtype, device=device),
            down=torch.empty((num_experts, hidden, intermediate), dtype=dtype, device=device),
        )

    def on(self, kernels: KernelSet) -> RunMlp:
        """The mixture as these kernels compute it; they own the router from now on."""
        route = kernels.projection(self.router, None)
        experts = ExpertLayer(self.gate_up, self.down, self.config.num_chosen, self.config.renormalized)

        def run(space: Activations) -> None:
            route(space.normed, space.router_logits)
            kernels.mix_experts(space.normed, space.router_logits, experts, space.projected)

        return run

    def tensors(self) -> tuple[Tensor, ...]:
        """All parameters."""
        return (self.router, self.gate_up, self.down)


Mlp = DenseMlp | MoeMlp
