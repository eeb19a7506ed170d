"""Weights as kernels run with them: which tensors there are for a model's shard, and the tensors by their names."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from executor_svc.model.checkpoint_layout import Parameter, Role, parameters
from executor_svc.model.config import DecoderConfig
from executor_svc.model.packing import AS_IS, Matrix, Packing, TensorSpec
from executor_svc.model.sharding import Shard


@dataclass(frozen=True)
class WeightLayout:
    """What decides the tensors of prepared weights.

    Attributes:
        shard: of the model of `config`.
        dtype: of what is not packed, and of matrices before they are.
        has_head: whether logits are computed.
    """

    config: DecoderConfig
    shard: Shard
    dtype: torch.dtype
    packing: Packing = AS_IS
    has_head: bool = True

    @cached_property
    def parameters(self) -> list[Parameter]:
        """The shard's."""
        return parameters(self.config, self.shard, has_head=self.has_head)

    @cached_property
    def specs(self) -> dict[str, TensorSpec]:
        """Every tensor of prepared weights, by its name, in the order in which a step needs them.

        That of a parameter has its name; those of a matrix have their part's name after it: `layers.3.qkv.panels`.
        """
        specs: dict[str, TensorSpec] = {}
        for parameter in self.parameters:
            if not parameter.kept or self.is_alias(parameter):
                continue
            if parameter.role is Role.TENSOR:
                specs[parameter.name] = TensorSpec(self.dtype, parameter.shape)
            else:
                parts = self.packing.parts(parameter.matrix_shape, self.dtype)
                specs.update((f"{parameter.name}.{part}", spec) for part, spec in parts.items())
        return specs

    def is_alias(self, parameter: Parameter) -> bool:
        """Whether a parameter has no tensors of its own: kernels that take a tied head as it is take the embedding."""
        return parameter.same_as is not None and self.packing.as_is

    @property
    def num_parameters(self) -> int:
        """Elements in all parameters of the shard; tied ones count once."""
        return sum(parameter.num_elements for parameter in self.parameters)


@dataclass(frozen=True)
class Weights:
    """The prepared weights of a shard, on one device.

    Attributes:
        tensors: those that the layout names.
    """

    layout: WeightLayout
    tensors: Mapping[str, Tensor]

    def tensor(self, name: str) -> Tensor:
        """A parameter that is not multiplied by."""
        return self.tensors[name]

    def optional(self, name: str) -> Tensor | None:
        """Such a parameter, which not every model or rank has."""
        return self.tensors.get(name)

    def matrix(self, name: str) -> Matrix:
        """A parameter that kernels multiply by."""
        parameter = self._by_name[name]
        if self.layout.is_alias(parameter):
            assert parameter.same_as is not None
            return Matrix(parameter.matrix_shape, {"weight": self.tensors[parameter.same_as]})
        parts = self.layout.packing.parts(parameter.matrix_shape, self.layout.dtype)
        return Matrix(parameter.matrix_shape, {part: self.tensors[f"{name}.{part}"] for part in parts})

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.tensors["embedding"].device

    @cached_property
    def _by_name(self) -> dict[str, Parameter]:
        return {parameter.name: parameter for parameter in self.layout.parameters}
