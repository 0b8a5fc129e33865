"""A translated network: training and evaluation in the compiled kernel, every argument checked before it goes there."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.samples import Normalise
from coterie.kernel.checks import check_channels, check_flat, check_hyper, check_masks, dtype_of
from coterie.kernel.layers import Layer, Loss, records
from coterie.kernel.library import (
    DataCall,
    EvaluateCall,
    GradientCall,
    LayerRecord,
    Library,
    NetworkCall,
    TrainCall,
)

_LOSSES = {"cross_entropy": 0, "mse": 1}
_RULES = {"sgd": 0, "adam": 1}
_BLOCK_BYTES = 1 << 20  # of maps that convolutions work on at a time: about a second-level cache


@dataclass(frozen=True)
class Routing:
    """For a network with domains: that of every sample [n], and how domains borrow from each other (None: not)."""

    domains: Tensor
    mix: Tensor | None = None


@dataclass(frozen=True)
class Net:
    """A sequential network the kernel can train, made by `plan`; calls from several threads do not interfere."""

    parameters: tuple[str, ...]
    """Names in the flat vector's order: that of `module.named_parameters()`."""
    size: int
    """Length of the flat vector: all parameters, then all running statistics."""
    input_shape: tuple[int, ...]
    outputs: int
    loss: Loss
    layers: tuple[Layer, ...]
    maps: tuple[int, int, int]
    """The input as the first layer sees it: channels, height, width."""
    library: Library = field(repr=False)
    mix: str = ""
    """The entry of a state that says how domains borrow from each other, where there is one."""
    buffers: tuple[str, ...] = ()
    """Running statistics, behind the parameters in the flat vector."""
    counters: tuple[str, ...] = ()
    """Entries of a state that count the steps."""
    block_bytes: int = field(default=_BLOCK_BYTES, repr=False)

    def train(
        self,
        weights: Tensor,
        x: Tensor,
        y: Tensor | None,
        order: Tensor,
        *,
        epochs: int,
        batch: int,
        lr: float,
        optimiser: Literal["sgd", "adam"] = "sgd",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        mu: float = 0.0,
        anchor: Tensor | None = None,
        correction: Tensor | None = None,
        trained: Tensor | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        scale: float = 1.0,
        route: Routing | None = None,
        masks: Tensor | None = None,
        smallest: int = 1,
    ) -> float:
        """Train the flat `weights` in place, as torch's optimiser would; returns the mean loss over the samples seen.

        `order` holds the sample numbers of all epochs one after the other; a batch never crosses an epoch. `anchor`
        and `mu` give the prox term, `correction` is added to every gradient; where `trained` is 0 the
        weight stays as it is. `x` is of the weights' type, or uint8;
        both are normalised by (x * scale - mean) / std per channel. `masks` are those of dropout (`noise.masks`).
        Batches of fewer samples than `smallest` are left out.
        """
        dtype = dtype_of(weights)
        check_flat("weights", weights, (self.size,), dtype)
        for name, extra in (("anchor", anchor), ("correction", correction), ("trained", trained)):
            if extra is not None:
                check_flat(name, extra, (self.size,), dtype)
        if mu != 0 and anchor is None:
            raise CoterieError("The prox term (mu) needs an anchor; pass the weights the client started from.")
        check_flat("order", order, tuple(order.shape[:1]) if isinstance(order, Tensor) else (0,), torch.int64)
        if epochs < 1 or batch < 1:
            raise CoterieError(f"Training needs at least 1 epoch and a batch of at least 1, not {epochs} and {batch}.")
        if order.numel() == 0 or order.numel() % epochs:
            raise CoterieError(f"order holds {order.numel()} sample numbers, which are not {epochs} equal epochs.")
        if min(batch, order.numel() // epochs) < smallest:
            raise CoterieError(f"No batch has {smallest} samples, so there is nothing to train on.")
        if optimiser not in _RULES:
            raise CoterieError(f"The kernel knows the optimisers sgd and adam, not {optimiser!r}.")
        check_masks(masks, order.numel() * sum(math.prod(x.shape) for x in self.layers if x.shape))
        check_hyper(lr, momentum, weight_decay, mu, eps, betas)
        data, _kept = self._data(x, y, dtype, mean, std, scale)
        network, _layers = self._network(self.loss, self._routed(data, dtype, route))
        call = TrainCall(
            network=network,
            data=data,
            weights=weights.data_ptr(),
            anchor=None if anchor is None else anchor.data_ptr(),
            correction=None if correction is None else correction.data_ptr(),
            trained=None if trained is None else trained.data_ptr(),
            order=order.data_ptr(),
            masks=None if masks is None else masks.data_ptr(),
            epochs=epochs,
            per_epoch=order.numel() // epochs,
            batch=batch,
            block_bytes=self.block_bytes,
            smallest=smallest,
            rule=_RULES[optimiser],
            **{"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "mu": mu},
            **{"beta1": betas[0], "beta2": betas[1], "eps": eps},
        )
        self.library.call("train", dtype, call)
        return float(call.mean_loss)

    def evaluate(
        self,
        weights: Tensor,
        x: Tensor,
        y: Tensor | None,
        *,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        scale: float = 1.0,
        route: Routing | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy (NaN for squared error) of every model `weights[m]`, each a float64 tensor [M]."""
        dtype = dtype_of(weights)
        models = self._check_models(weights, dtype)
        losses, accuracies = torch.empty(models, dtype=torch.float64), torch.empty(models, dtype=torch.float64)
        data, _kept = self._data(x, y, dtype, mean, std, scale)
        mix = self._routed(data, dtype, route)
        self._evaluate(self.loss, data, mix, weights, mean_losses=losses.data_ptr(), accuracies=accuracies.data_ptr())
        if self.loss == "mse":
            accuracies.fill_(math.nan)
        return losses, accuracies

    def predict(
        self,
        weights: Tensor,
        x: Tensor,
        *,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        scale: float = 1.0,
        route: Routing | None = None,
    ) -> Tensor:
        """Class probabilities (for squared error: the outputs) of every model, [M, n, outputs]."""
        return self._outputs(weights, x, self.loss, mean, std, scale, route)

    def logits(
        self,
        weights: Tensor,
        x: Tensor,
        route: Routing | None = None,
        *,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        scale: float = 1.0,
    ) -> Tensor:
        """What the module itself returns, for every model: [M, n, outputs], without a softmax."""
        return self._outputs(weights, x, "mse", mean, std, scale, route)

    def input_gradient(self, weights: Tensor, x: Tensor, y: Tensor | None) -> tuple[float, Tensor]:
        """The summed loss of one model (flat `weights`) and its gradient with respect to the inputs `x`."""
        if not self.has_input_gradient:
            raise CoterieError("The kernel has no gradient of the inputs of such a network; use torch.")
        dtype = dtype_of(weights)
        check_flat("weights", weights, (self.size,), dtype)
        data, _kept = self._data(x, y, dtype, (0.0,), (1.0,), 1.0)
        if x.dtype != dtype:
            raise CoterieError(f"x is {x.dtype}, but {dtype} is needed; bytes have no gradient.")
        gradient = torch.empty_like(x)
        network, _layers = self._network(self.loss, None)
        call = GradientCall(
            network=network,
            data=data,
            weights=weights.data_ptr(),
            block_bytes=self.block_bytes,
            gradient=gradient.data_ptr(),
        )
        self.library.call("gradient", dtype, call)
        return float(call.loss), gradient

    def _outputs(
        self,
        weights: Tensor,
        x: Tensor,
        loss: Loss,
        mean: Sequence[float],
        std: Sequence[float],
        scale: float,
        route: Routing | None,
    ) -> Tensor:
        dtype = dtype_of(weights)
        models = self._check_models(weights, dtype)
        data, _kept = self._inputs(x, dtype, mean, std, scale)
        out = torch.empty(models, x.shape[0], self.outputs, dtype=dtype)
        self._evaluate(loss, data, self._routed(data, dtype, route), weights, outputs=out.data_ptr())
        return out

    def _evaluate(self, loss: Loss, data: DataCall, mix: Tensor | None, weights: Tensor, **wanted: int) -> None:
        """Every model `weights[m]` on all samples; `wanted` are the places for what is asked of them."""
        network, _layers = self._network(loss, mix)
        call = EvaluateCall(
            network=network,
            data=data,
            weights=weights.data_ptr(),
            models=weights.shape[0],
            parameters=self.size,
            block_bytes=self.block_bytes,
            **wanted,
        )
        self.library.call("evaluate", dtype_of(weights), call)

    @cached_property
    def _records(self) -> ctypes.Array[LayerRecord]:
        return records(self.layers)

    def _network(self, loss: Loss, mix: Tensor | None) -> tuple[NetworkCall, ctypes.Array[LayerRecord]]:
        place = None if mix is None else mix.data_ptr()
        return NetworkCall(self._records, len(self._records), *self.maps, _LOSSES[loss], place), self._records

    @cached_property
    def domains(self) -> int:
        """How many domains its last convolution knows; 0 for a network without any."""
        return max(layer.domains for layer in self.layers)

    @cached_property
    def mixes_samples(self) -> bool:
        """Whether it normalises samples by each other."""
        return any(layer.kind == "norm" and not layer.groups for layer in self.layers)

    @property
    def has_input_gradient(self) -> bool:
        """Whether `input_gradient` is there: not with domains, nor in a network that is more than a chain."""
        return not self.domains and not any(layer.in_graph or layer.kind == "lookup" for layer in self.layers)

    @cached_property
    def rows_named(self) -> tuple[int, ...]:
        """For every column of the inputs, of how many rows it names one; 0 for a column that is a number."""
        named = [0] * self.input_shape[0]
        for layer in self.layers:
            first, count = layer.columns
            if layer.kind == "lookup" and layer.rows:  # a column may also be looked up twice
                named[first : first + count] = [
                    min(rows or layer.rows, layer.rows) for rows in named[first : first + count]
                ]
        return tuple(named)

    def _routed(self, data: DataCall, dtype: torch.dtype, route: Routing | None) -> Tensor | None:
        """Put the domains of the samples into `data`; returned is how they borrow from each other."""
        if (route is None) != (self.domains == 0):
            raise CoterieError("Domains (route) go with a network that has some, and only with such a one.")
        if route is None:
            return None
        check_flat("domains", route.domains, (data.samples,), torch.int64)
        data.domains = route.domains.data_ptr()
        if route.mix is not None:
            check_flat("mix", route.mix, (self.domains, self.domains), dtype)
        return route.mix

    def _check_models(self, weights: Tensor, dtype: torch.dtype) -> int:
        models = int(weights.shape[0]) if weights.dim() == 2 else 0
        check_flat("weights", weights, (models, self.size), dtype)
        return models

    def _inputs(
        self, x: Tensor, dtype: torch.dtype, mean: Sequence[float], std: Sequence[float], scale: float
    ) -> tuple[DataCall, list[Tensor]]:
        """The inputs as the kernel takes them, and the tensors that must live until the call is over."""
        if not isinstance(x, Tensor) or x.dim() == 0 or x.shape[0] == 0:
            raise CoterieError("The inputs x must be a tensor with at least one sample.")
        normalise = Normalise(tuple(mean), tuple(std), float(scale))
        check_channels(normalise, self.input_shape[0])
        if x.dtype != torch.uint8:
            check_flat("x", x, (x.shape[0], *self.input_shape), dtype)
            if normalise != Normalise():
                x = normalise(x, dtype).contiguous()
            return DataCall(values=x.data_ptr(), table_channels=1, samples=x.shape[0]), [x]
        check_flat("x", x, (x.shape[0], *self.input_shape), torch.uint8)
        table = _table(normalise, dtype)
        if len(table) > 1 and self.maps[0] != self.input_shape[0]:
            raise CoterieError("A mean per channel needs a network that keeps the channels; normalise x first.")
        return DataCall(bytes=x.data_ptr(), table=table.data_ptr(), table_channels=len(table), samples=x.shape[0]), [
            x,
            table,
        ]

    def _data(
        self, x: Tensor, y: Tensor | None, dtype: torch.dtype, mean: Sequence[float], std: Sequence[float], scale: float
    ) -> tuple[DataCall, list[Tensor]]:
        data, kept = self._inputs(x, dtype, mean, std, scale)
        if self.loss == "cross_entropy":
            if y is None:
                raise CoterieError("Cross-entropy needs the labels y.")
            check_flat("y", y, (x.shape[0],), torch.int64)
            data.labels = y.data_ptr()
        elif y is None:
            if math.prod(self.input_shape) != self.outputs:
                raise CoterieError(
                    "Without targets y the network must have as many outputs as inputs (an autoencoder)."
                )
        else:
            check_flat("y", y, tuple(y.shape), dtype)
            if y.numel() != x.shape[0] * self.outputs or y.shape[0] != x.shape[0]:
                raise CoterieError(f"The targets y must hold {self.outputs} values for each of {x.shape[0]} samples.")
            data.target_values = y.data_ptr()
        return data, kept


@lru_cache(maxsize=32)
def _table(normalise: Normalise, dtype: torch.dtype) -> Tensor:
    """The normalised value of every byte, [channels, 256]: by torch, so that it is what normalising first gives."""
    values = torch.arange(256, dtype=torch.uint8)[:, None]
    values = values.expand(-1, max(len(normalise.mean), len(normalise.std)))
    return normalise(values, dtype).T.contiguous()
