"""Layers with a part for all domains and a residual for each (FedCG, equation 4)."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.errors import CoterieError
from coterie.methods.fedcg.graph import DomainGraph
from coterie.methods.fedcg.route import Route

ResidualStart = Literal["zero", "random"]
_LITTLE_WORK = 1 << 24  # multiplications of a convolution (measured: docs/results/fedcg.md, Cost)


class _NotOneWeight(CoterieError, AttributeError):
    """An attribute error too, so that `hasattr` and `getattr` with a default work."""


class DomainLayer(nn.Module):
    """z = f_a(x) + scale * f_d(x), the two merged into one kernel for each domain that a batch really has.

    `residual` is V of equation 5: row d holds the parameters of domain d, the weights and then the bias. Without an
    agnostic part the layer is f_d alone.
    """

    def __init__(
        self,
        route: Route,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor,
        *,
        scale: float | None,
        graph: DomainGraph | None,
        on_activation: bool,
    ) -> None:
        super().__init__()
        self.route, self.graph, self.on_activation = route, graph, on_activation
        self.kernel_shape, self.with_bias = weight.shape, bias is not None
        self.residual = nn.Parameter(residual)
        self.agnostic = scale is not None
        if scale is not None:
            self.register_parameter("weight", nn.Parameter(weight.detach().clone(), weight.requires_grad))
            if bias is not None:
                self.register_parameter("bias", nn.Parameter(bias.detach().clone(), bias.requires_grad))
            self.scale = nn.Parameter(torch.tensor(scale, dtype=weight.dtype))

    def __getattr__(self, name: str) -> Any:
        if name in ("weight", "bias"):
            raise _NotOneWeight(
                f"This network reads the {name} of a layer by itself, and with FedCG's residuals there is one for each "
                "domain; leave that layer out of layers."
            )
        return super().__getattr__(name)

    @property
    def common(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the agnostic part."""
        weight = self._parameters["weight"]
        assert weight is not None
        return weight, self._parameters.get("bias")

    @property
    def domains(self) -> int:
        """How many domains there are."""
        return self.residual.shape[0]

    def joined(self, rows: Tensor) -> Tensor:
        """The residual parameters of these domains after the graph, [len(rows), q]."""
        adjacency = self.route.adjacency
        if self.graph is not None and not self.graph.is_identity:
            eye = torch.eye(self.domains, dtype=self.residual.dtype, device=self.residual.device)
            joined: Tensor = self.graph(self.residual, eye if adjacency is None else adjacency, rows)
            return joined
        if adjacency is not None:
            return adjacency[rows] @ self.residual
        return self.residual if len(rows) == self.domains else self.residual.index_select(0, rows)

    def merged(self, rows: Tensor) -> Tensor:
        """What domains compute with, [len(rows), q]: their residual parameters merged with the agnostic ones."""
        if not self.agnostic:
            return rows
        weight, bias = self.common
        weight = weight.reshape(-1)
        return torch.addcmul(weight if bias is None else torch.cat([weight, bias]), self.scale, rows)

    def _kernels(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weights in each row, and the biases."""
        shape = (len(rows), *self.kernel_shape)
        if not self.with_bias:
            return rows.reshape(shape), None
        weights, biases = rows.split([self.kernel_shape.numel(), self.kernel_shape[0]], dim=1)
        return weights.reshape(shape), biases

    @abstractmethod
    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer as it was before, with these parameters."""

    @abstractmethod
    def compute_each(self, x: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
        """The same in one call for samples of all domains in turn, each with the parameters of its own."""

    def prefers_one_call(self, x: Tensor) -> bool:
        """Whether one call for all domains is cheaper than one for each."""
        return True

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output, each sample by its own domain."""
        if self.route.samples != len(x):
            raise CoterieError(
                f"A domain layer got a batch of {len(x)} while the network got {self.route.samples} samples; leave "
                "layers out that reshape the batch."
            )
        if not self.on_activation:
            return self._routed(x, self.merged, lambda z: z)
        rectified = self._routed(x, lambda rows: rows, F.relu)
        if not self.agnostic:
            return rectified
        return self.compute(x, *self.common) + self.scale * rectified

    def _routed(self, x: Tensor, merge: Callable[[Tensor], Tensor], finish: Callable[[Tensor], Tensor]) -> Tensor:
        """Every sample with the merged parameters of its domain, each domain's samples at once."""
        route = self.route
        if route.weights is not None:
            return self._mixed(x, route.weights, merge, finish)
        weights, biases = self._kernels(merge(self.joined(route.present)))
        if route.order is None:
            return finish(self.compute(x, weights[0], None if biases is None else biases[0]))
        if route.is_even and self.prefers_one_call(x):
            turns, places = route.turns()
            return finish(_taken(self.compute_each(_taken(x, turns), weights, biases), places))
        there, back = route.order
        groups = _taken(x, there).split(route.sizes)
        return finish(_taken(torch.cat(list(self._one_by_one(groups, weights, biases))), back))

    def _one_by_one(self, groups: Iterable[Tensor], weights: Tensor, biases: Tensor | None) -> Iterator[Tensor]:
        each = [None] * len(weights) if biases is None else biases.unbind()
        for x, weight, bias in zip(groups, weights.unbind(), each, strict=True):
            yield self.compute(x, weight, bias)

    def _mixed(
        self, x: Tensor, weights: Tensor, merge: Callable[[Tensor], Tensor], finish: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Every sample by all domains, weighted; by one mixed kernel where that is the same."""
        every = self.joined(torch.arange(self.domains, device=self.residual.device))
        plain = not self.on_activation and len(x) > 0 and not torch._C._is_tracing()  # a recording is for any batch
        alike = plain and bool((weights == weights[:1]).all())
        kernels = self._kernels(merge(weights[:1] @ every if alike else every))
        outputs = [finish(z) for z in self._one_by_one([x] * len(kernels[0]), *kernels)]
        if alike:
            return outputs[0]
        shares = weights.T.reshape(self.domains, -1, *[1] * (outputs[0].dim() - 1))
        return (torch.stack(outputs) * shares).sum(0)

    def fold(self) -> None:
        """Put what the graph makes in the place of V, and forget graph and agnostic part where they merge."""
        merges = self.agnostic and not self.on_activation
        with torch.no_grad():
            rows = self.joined(torch.arange(self.domains, device=self.residual.device))
            self.residual = nn.Parameter((self.merged(rows) if merges else rows).clone(), requires_grad=False)
        self.graph = None
        if merges:
            for name in ("weight", "bias", "scale"):
                self._parameters.pop(name, None)
            self.agnostic = False


class DomainLinear(DomainLayer):
    """A linear layer with residuals."""

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The linear map."""
        return F.linear(x, weight, bias)

    def compute_each(self, x: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
        """One product of stacks of matrices."""
        left, right = x.reshape(-1, len(weights), *x.shape[1:]).transpose(0, 1), weights.transpose(1, 2)
        rows = left.flatten(1, -2)
        z = torch.bmm(rows, right) if biases is None else torch.baddbmm(biases.unsqueeze(1), rows, right)
        return z.reshape(*left.shape[:-1], -1).transpose(0, 1).flatten(0, 1)


class DomainConv2d(DomainLayer):
    """A convolution with residuals; stride, padding, dilation and groups are those of the layer it replaces."""

    like: nn.Conv2d

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution."""
        output: Tensor = self.like._conv_forward(x, weight, bias)
        return output

    def prefers_one_call(self, x: Tensor) -> bool:
        """A grouped convolution is slower by itself, and saves calls: it pays where a call does little."""
        if self.like.padding_mode != "zeros" or x.shape[1] != self.like.in_channels:
            return False  # the wrong number of channels is better told by one convolution
        return x.numel() // x.shape[1] * self.kernel_shape.numel() <= _LITTLE_WORK

    def compute_each(self, x: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
        """One convolution in groups of channels, those of a domain each."""
        like, domains = self.like, len(weights)
        kernels, shifts = weights.flatten(0, 1), None if biases is None else biases.flatten()
        images = x.reshape(-1, domains, *x.shape[1:])
        beside = images.permute(0, 3, 4, 1, 2).flatten(3).permute(0, 3, 1, 2)  # channels of all domains, innermost
        z = F.conv2d(beside, kernels, shifts, like.stride, like.padding, like.dilation, domains * like.groups)
        maps = z.permute(0, 2, 3, 1).reshape(len(z), *z.shape[2:], domains, -1)
        return maps.permute(0, 3, 1, 2, 4).flatten(0, 1).permute(0, 3, 1, 2)


class DomainBatchNorm2d(DomainLayer):
    """Batch normalisation with common statistics; the residuals are of its scale and shift."""

    normalise: nn.BatchNorm2d

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Scale and shift of what is normalised already."""
        assert bias is not None
        return x * weight.view(-1, 1, 1) + bias.view(-1, 1, 1)

    def compute_each(self, x: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
        """The same."""
        assert biases is not None
        turns = x.reshape(-1, len(weights), *x.shape[1:])
        return (turns * weights[..., None, None] + biases[..., None, None]).flatten(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise over the whole batch, then scale and shift by domain."""
        return super().forward(self.normalise(x))


def _taken(x: Tensor, samples: Tensor) -> Tensor:
    """Some samples; channels stay innermost in memory where they are, for the layers that follow."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(0, 2, 3, 1).index_select(0, samples).permute(0, 3, 1, 2)
    return x.index_select(0, samples)


def domain_layer(
    layer: nn.Module,
    route: Route,
    domains: int,
    *,
    start: ResidualStart,
    scale: float | None,
    graph: DomainGraph | None,
    on_activation: bool,
) -> DomainLayer:
    """The counterpart of a Linear, Conv2d or BatchNorm2d layer; with `scale` None it has no agnostic part."""
    weight, bias = parameters_of(layer)
    residual = _first_residual(layer, domains, start if scale is not None else "copy")
    kinds: dict[type, type[DomainLinear | DomainConv2d | DomainBatchNorm2d]]
    kinds = {nn.Linear: DomainLinear, nn.Conv2d: DomainConv2d, nn.BatchNorm2d: DomainBatchNorm2d}
    made = kinds[type(layer)](route, weight, bias, residual, scale=scale, graph=graph, on_activation=on_activation)
    if isinstance(layer, nn.Conv2d):
        made.like = _without_parameters(layer)
    elif isinstance(layer, nn.BatchNorm2d):
        made.normalise = nn.BatchNorm2d(
            layer.num_features,
            layer.eps,
            layer.momentum,
            affine=False,
            track_running_stats=layer.track_running_stats,
            dtype=weight.dtype,
        )
        made.normalise.load_state_dict(dict(layer.named_buffers()))
    return made


def parameters_of(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight and bias; a normalisation without its own has 1 and 0."""
    if isinstance(layer, nn.BatchNorm2d) and not layer.affine:
        one = torch.ones(layer.num_features).to(layer.running_mean)  # the same numbers' type
        return one.requires_grad_(), torch.zeros_like(one).requires_grad_()
    assert isinstance(layer.weight, Tensor)
    assert layer.bias is None or isinstance(layer.bias, Tensor)
    return layer.weight, layer.bias


def _first_residual(layer: nn.Module, domains: int, start: Literal["zero", "random", "copy"]) -> Tensor:
    flat = torch.cat([part.detach().reshape(-1) for part in parameters_of(layer) if part is not None])
    if start == "zero":
        return flat.new_zeros(domains, len(flat))
    if start == "copy":
        return flat.repeat(domains, 1)
    rows = []
    for _ in range(domains):
        fresh = copy.deepcopy(layer)
        if isinstance(fresh, nn.BatchNorm2d):
            rows.append(0.1 * torch.randn(len(flat)).to(flat.dtype))  # scales that add nothing on average
            continue
        assert isinstance(fresh, nn.Linear | nn.Conv2d)
        fresh.reset_parameters()
        rows.append(torch.cat([part.detach().reshape(-1) for part in parameters_of(fresh) if part is not None]))
    return torch.stack(rows)


def _without_parameters(layer: nn.Conv2d) -> nn.Conv2d:
    """The convolution's geometry alone."""
    bare = copy.deepcopy(layer)
    bare.weight, bare.bias = None, None  # type: ignore[assignment]
    return bare
