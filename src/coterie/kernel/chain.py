"""A chain of layers while it is translated, and which kinds of modules it can be made of.

`register_layer` and `register_network` are how layers and networks from elsewhere say what they are to the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from coterie.kernel.flat import NotKnown as NotKnown
from coterie.kernel.flat import offsets_of
from coterie.kernel.layers import ACTIVATIONS, BEFORE, Kind, Layer, Loss, size_behind
from coterie.kernel.library import Library
from coterie.kernel.net import Net

M = TypeVar("M", bound=nn.Module)
BATCH = object()  # stands for the number of samples in shapes
_WIDEST = 512  # in a network that is more than a chain, but for 1x1 and depthwise: wider ones were not measured
_BEHIND_DOMAINS = ((), ("pool",), ("activation",), ("activation", "pool"), ("pool", "activation"))


@dataclass(frozen=True)
class Routed:
    """A network whose samples come with their domains, as names of its attributes.

    The chain is in `network`. The buffer `mix` [D, D] (or None) says how domains borrow from each other.
    """

    network: str
    mix: str


LAYERS: dict[type[nn.Module], Callable[[Chain, str, Any], None]] = {}
"""Kinds of layers, and what each adds to a chain."""
NETWORKS: dict[type[nn.Module], Routed] = {}
"""Kinds of networks with domains."""


def register_layer(kind: type[M], add: Callable[[Chain, str, M], None]) -> None:
    """Have the kernel take layers of exactly this kind: `add(chain, name, module)` adds the module to the chain.

    It is called while the network is translated and raises `NotKnown` with a reason where the kernel cannot take the
    layer. A layer with a residual per domain has the parameters `residual` [D, q] (weight, then bias) and `scale`
    beside `weight` and `bias`, and computes with weight + scale * residual[d].
    """
    LAYERS[kind] = add


def register_network(kind: type[nn.Module], routed: Routed) -> None:
    """Have the kernel take networks of exactly this kind, whose forward is (x, domains) -> outputs."""
    NETWORKS[kind] = routed


def pair(value: Any) -> tuple[Any, Any]:
    """One number for both sides of a map, or two."""
    return tuple(value) if isinstance(value, list | tuple) else (value, value)


class Chain:
    """The layers so far; `shape` is that of one sample behind them."""

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...]) -> None:
        if not input_shape or min(input_shape) < 1 or len(input_shape) not in (1, 3):
            raise NotKnown(f"inputs of shape {input_shape} are neither vectors nor (channels, height, width)")
        self.input_shape = self.shape = self.maps = input_shape
        self.layers: list[Layer] = []
        self._widest, self._work = 0, [0, 0]  # multiplications: of most convolutions, of those that torch does better
        self.place = -1  # of the layer that the next one reads; -1 is the input
        self.routed = NETWORKS.get(type(module))
        self.offsets, self.buffers, self.counters, self.size = offsets_of(
            module, {self.routed.mix} if self.routed else set()
        )
        self.unused = {*self.offsets, *self.buffers}
        whole = getattr(module, self.routed.network) if self.routed else module
        # A layer on its own is traced inside a container, so that it stays a layer.
        alone = type(whole) in (nn.Linear, nn.Conv2d)
        self.root: nn.Module = nn.Sequential(whole) if alone else whole
        self.modules = dict(self.root.named_modules())
        self._prefix = "0." if alone else ""
        self._inside = f"{self.routed.network}." if self.routed else ""

    def label(self, name: str) -> str:
        """How a layer is named in a reason."""
        return f"{name} ({type(self.modules[name]).__name__})"

    def net(self, library: Library, loss: Loss) -> Net:
        """The result, once all layers are there."""
        if self.unused:
            raise NotKnown(f"its parameter {min(self.unused)} is not used")
        kinds = [layer.kind for layer in self.layers]
        if "linear" not in kinds:
            raise NotKnown("it has no linear layer at the end")
        for first, second in zip(kinds[kinds.index("linear") :], kinds[kinds.index("linear") + 1 :], strict=False):
            if (first, second) == ("relu6", "dropout"):
                raise NotKnown("dropout behind ReLU6 is not known to the kernel")
            if "linear" not in (first, second) and (second != "dropout" or first == "dropout"):
                raise NotKnown(f"{second} behind {first} follows a linear layer")
        self._check_domains()
        if any(layer.in_graph for layer in self.layers):
            self._check_graph()
        maps = self.maps if len(self.maps) == 3 else (self.maps[0], 1, 1)
        return Net(
            parameters=tuple(self.offsets),
            size=self.size,
            input_shape=self.input_shape,
            outputs=self.shape[0],
            loss=loss,
            layers=tuple(self.layers),
            maps=(maps[0], maps[1], maps[2]),
            library=library,
            mix=self.routed.mix if self.routed else "",
            buffers=tuple(self.buffers),
            counters=self.counters,
        )

    def add(self, name: str, module: nn.Module) -> None:
        """A module of the network."""
        if type(module) not in LAYERS:
            raise NotKnown(f"layer {self.label(name)} is not known to the kernel")
        LAYERS[type(module)](self, name, module)

    def activation(self, kind: Kind) -> None:
        """An activation."""
        self.append(Layer(kind))

    def linear(self, name: str, inputs: int, outputs: int, domains: int = 0) -> None:
        """A linear layer, its parameters those of the module with this name; with a residual for each of `domains`."""
        if self.shape != (inputs,):
            raise NotKnown(f"{self.label(name)} gets inputs of shape {self.shape}, not vectors of {inputs}")
        self.append(Layer("linear", outputs, (1, 1), (0, 0), *self._parts(name, domains)))
        self.shape = (outputs,)

    def convolution(self, name: str, module: nn.Conv2d, domains: int = 0) -> None:
        """A convolution with the geometry of `module`; otherwise as `linear`."""
        label = self.label(name)
        if module.dilation != (1, 1) or module.padding_mode != "zeros":
            raise NotKnown(f"{label} has a dilation or padding mode that is not known to the kernel")
        depthwise = module.groups > 1
        if depthwise and (not module.groups == module.in_channels == module.out_channels or domains):
            raise NotKnown(f"{label} has groups of several channels, which are not known to the kernel")
        height, width = module.kernel_size
        if module.padding == "valid":
            padding = (0, 0)
        elif module.padding == "same":
            if height % 2 == 0 or width % 2 == 0:
                raise NotKnown(f"{label} pads unevenly")
            padding = (height // 2, width // 2)
        else:
            padding = (int(module.padding[0]), int(module.padding[1]))
        if len(self.shape) != 3 or self.shape[0] != module.in_channels or self._has_linear():
            raise NotKnown(f"{label} gets inputs of shape {self.shape}, not maps with {module.in_channels} channels")
        stride = (module.stride[0], module.stride[1])
        size = size_behind(self.shape[1:], (height, width), stride, padding)
        if min(size) < 1:
            raise NotKnown(f"{label} is larger than its input of shape {self.shape}")
        parts = self._parts(name, domains)
        if not depthwise:
            self._count(module, stride, size)
        kind: Kind = "depthwise" if depthwise else "convolution"
        self.append(Layer(kind, module.out_channels, (height, width), padding, *parts, stride=stride, size=size))
        self.shape = (module.out_channels, *size)

    def _count(self, module: nn.Conv2d, stride: tuple[int, int], size: tuple[int, int]) -> None:
        """The work of a convolution: on some torch is faster."""
        shape = (*module.kernel_size, *stride)
        if shape != (1, 1, 1, 1):
            self._widest = max(self._widest, module.in_channels, module.out_channels)
        slow = module.in_channels >= 64 and shape not in ((3, 3, 1, 1), (1, 1, 1, 1))
        self._work[slow] += module.in_channels * module.out_channels * math.prod((*module.kernel_size, *size))

    def pool(self, label: str, options: dict[str, Any]) -> None:
        """A pool with these arguments of torch's."""
        kernel = pair(options.pop("kernel_size", None))
        stride = options.pop("stride", None)
        stride = kernel if stride is None or stride in ((), []) else pair(stride)
        padding, dilation = pair(options.pop("padding", 0)), pair(options.pop("dilation", 1))
        rounds_up = bool(options.pop("ceil_mode", False))
        if dilation != (1, 1) or options.pop("return_indices", False) or options or math.prod(kernel) > 255:
            raise NotKnown(f"{label} is not a plain pool")
        on_maps = len(self.shape) == 3 and not self._has_linear()
        size = size_behind(self.shape[1:], kernel, stride, padding, rounds_up) if on_maps else (0, 0)
        if min(size) < 1:
            raise NotKnown(f"{label} gets inputs of shape {self.shape}")
        halves = (kernel, stride, padding) == ((2, 2), (2, 2), (0, 0)) and size == (
            self.shape[1] // 2,
            self.shape[2] // 2,
        )
        self.append(Layer("pool" if halves else "field", kernel=kernel, padding=padding, stride=stride, size=size))
        self.shape = (self.shape[0], *size)

    def norm(self, name: str, channels: int, eps: float, *, groups: int = 0, momentum: float = 0.0) -> None:
        """A normalisation over the batch, or of groups of channels; its running statistics are buffers."""
        if len(self.shape) != 3 or self.shape[0] != channels or self._has_linear():
            raise NotKnown(f"{self.label(name)} gets inputs of shape {self.shape}, not maps with {channels} channels")
        running = [self.use(name, each) for each in ("running_mean", "running_var")] if not groups else [-1, -1]
        own = {"weight": self.use(name, "weight"), "bias": self.use(name, "bias")}
        options = {"groups": groups, "mean": running[0], "variance": running[1], "eps": eps, "momentum": momentum}
        self.append(Layer("norm", **own, **options))  # type: ignore[arg-type]

    def addition(self, first: int, second: int) -> None:
        """The sum of what two layers make, of the present shape."""
        if len(self.shape) != 3 or self._has_linear() or first == second:
            raise NotKnown("an add of anything but two maps is not known to the kernel")
        self.place = max(first, second)
        self.append(Layer("add", other=min(first, second)))

    def average(self, label: str, window: tuple[int, int]) -> None:
        """Means over fields of this size that touch each other; what is left over at the edges is dropped."""
        if len(self.shape) != 3 or self._has_linear() or window[0] > self.shape[1] or window[1] > self.shape[2]:
            raise NotKnown(f"{label} gets inputs of shape {self.shape}")
        self.append(Layer("average", kernel=window))
        self.shape = (self.shape[0], self.shape[1] // window[0], self.shape[2] // window[1])

    def average_to(self, label: str, size: Any) -> None:
        """Means over fields of equal size, so many as torch's adaptive pooling is asked for."""
        wanted = pair(size)
        sides = self.shape[1:] if len(self.shape) == 3 else (0, 0)
        counts = tuple(side if count is None else count for side, count in zip(sides, wanted, strict=True))
        if any(
            not isinstance(count, int) or not count or side % count for side, count in zip(sides, counts, strict=True)
        ):
            raise NotKnown(f"{label} makes {size} fields of inputs of shape {self.shape}, which are not equally large")
        self.average(label, (sides[0] // counts[0], sides[1] // counts[1]))

    def average_pool(self, label: str, options: dict[str, Any]) -> None:
        """An average pool with these arguments of torch's."""
        kernel, stride = pair(options.get("kernel_size")), options.get("stride")
        stride = kernel if stride is None or stride in ((), []) else pair(stride)
        padded = pair(options.get("padding", 0)) != (0, 0)
        if kernel != stride or padded or options.get("ceil_mode") or options.get("divisor_override") is not None:
            raise NotKnown(f"{label} is not a plain average over fields that touch")
        self.average(label, kernel)

    def dropout(self, label: str, rate: float) -> None:
        """Dropout of single values."""
        if not rate:
            return
        if not 0 < rate < 1:
            raise NotKnown(f"{label} drops everything")
        if self.routed:
            raise NotKnown(f"{label} is in a network with domains")
        if (
            len(self.shape) == 3
            and self.maps != self.input_shape
            and not any(x.kind == "convolution" for x in self.layers)
        ):
            raise NotKnown(f"{label} comes before the first convolution, on reshaped inputs")
        self.append(Layer("dropout", rate=float(rate), shape=self.shape))

    def flatten(self, start: Any, end: Any) -> None:
        """A flatten with these arguments of torch's."""
        if start != 1 or end not in (-1, len(self.shape)):
            raise NotKnown("a flatten does not keep exactly the samples apart")
        self.shape = (math.prod(self.shape),)

    def reshape(self, wanted: list[Any]) -> None:
        """A reshape that flattens, or that makes maps of vectors before the first layer."""
        size = math.prod(self.shape)
        if not wanted or any(value is not BATCH and not isinstance(value, int) for value in wanted):
            raise NotKnown("a reshape has sizes that are not known")
        rest = wanted[1:]
        if BATCH in rest or rest.count(-1) > (wanted[0] is BATCH):
            raise NotKnown("a reshape mixes the samples")
        known = math.prod(value for value in rest if value != -1)
        rest = [size // known if value == -1 and known else value for value in rest]
        if (wanted[0] is not BATCH and wanted[0] != -1) or not rest or math.prod(rest) != size:
            raise NotKnown("a reshape mixes the samples")
        if tuple(rest) == self.shape:
            return
        if len(rest) == 3 and not self.layers:
            self.maps = tuple(rest)
        elif len(rest) != 1:
            raise NotKnown("a reshape between layers does more than flatten")
        self.shape = tuple(rest)

    def use(self, module: str, parameter: str) -> int:
        """Where a parameter begins in the flat vector, -1 if there is none; it must not have been used before."""
        name = self._inside + f"{module}.{parameter}".removeprefix(".").removeprefix(self._prefix)
        owner = self.modules[module]
        if owner._parameters.get(parameter) is None and owner._buffers.get(parameter) is None:
            return -1
        if name not in self.unused:
            raise NotKnown(f"its parameter {name} is used twice or shared")
        self.unused.remove(name)
        return self.offsets[name] if name in self.offsets else self.buffers[name]

    def append(self, layer: Layer) -> None:
        """A layer that reads what is at `place`."""
        if self.place != len(self.layers) - 1:
            if layer.kind == "linear" or self._has_linear():
                raise NotKnown("its forward is not a chain behind the maps")
            layer = replace(layer, source=self.place)
        self.place = len(self.layers)
        self.layers.append(layer)

    def _check_graph(self) -> None:
        """A network that is more than a chain has no domains and uses all that it makes."""
        last = [layer.kind for layer in self.layers].index("linear")
        if self._widest > _WIDEST:
            raise NotKnown(f"it has convolutions of more than {_WIDEST} channels, with which torch may be faster")
        if self._work[True] > self._work[False]:
            raise NotKnown("most of its work is in wide convolutions that are not 3x3 with stride 1: torch is faster")
        if self.routed:
            raise NotKnown("it has domains, and is not a plain chain")
        read = {place - 1 if layer.source == BEFORE else layer.source for place, layer in enumerate(self.layers)}
        read |= {layer.other for layer in self.layers if layer.kind == "add"}
        if set(range(last)) - read:
            raise NotKnown("its forward is not a chain: it makes something that it does not use")

    def _check_domains(self) -> None:
        """The kernel has domains in one layer alone, linear or the last convolution."""
        places = [place for place, layer in enumerate(self.layers) if layer.domains]
        if len(places) > 1:
            raise NotKnown("it has domains in more than one layer")
        kinds = [layer.kind for layer in self.layers]
        if not places or kinds[places[0]] == "linear":
            return
        behind = kinds[places[0] + 1 : kinds.index("linear")]
        named = tuple("activation" if kind in ACTIVATIONS else kind for kind in behind)
        if "convolution" in behind or named not in _BEHIND_DOMAINS:
            raise NotKnown("it has domains in another convolution than the last")

    def _parts(self, name: str, domains: int) -> tuple[int, ...]:
        """Where the parameters of a layer begin, as `Layer` wants them."""
        own = (self.use(name, "weight"), self.use(name, "bias"))
        return (*own, domains, self.use(name, "residual"), self.use(name, "scale")) if domains else own

    def _has_linear(self) -> bool:
        return any(layer.kind == "linear" for layer in self.layers)
