"""From an `nn.Module` to the layers the kernel knows, or the reason why not.

torch.fx shows what `forward` does. Only a chain of known layers, written as modules or as functions, with every
parameter used once, is accepted; then the translation is run beside the module on random numbers, as a last word.
"""

from __future__ import annotations

import copy
import math
import operator
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from coterie.kernel.library import Library, installed
from coterie.kernel.net import Layer, Loss, Net
from coterie.kernel.verify import difference
from coterie.models.domains import DomainNet
from coterie.models.residual import DomainConv2d, DomainLayer, DomainLinear

_TRACING = Lock()  # torch.fx patches torch while it traces
_BATCH = object()  # stands for the number of samples in shapes

_ACTIVATION_MODULES = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
_ACTIVATIONS: dict[Any, str] = {
    **dict.fromkeys((torch.relu, torch.relu_, F.relu, F.relu_, "relu", "relu_"), "relu"),
    **dict.fromkeys((torch.tanh, F.tanh, "tanh", "tanh_"), "tanh"),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid", "sigmoid_"), "sigmoid"),
}
_RESHAPES: frozenset[Any] = frozenset(("view", "reshape", torch.reshape))
_FLATTENS: frozenset[Any] = frozenset(("flatten", torch.flatten))
_POOLS: frozenset[Any] = frozenset((F.max_pool2d, torch.max_pool2d))
_NOTHING: frozenset[Any] = frozenset(("contiguous",))
_BEHIND_DOMAINS = ((), ("pool",), ("activation",), ("activation", "pool"), ("pool", "activation"))


@dataclass(frozen=True)
class Refusal:
    """The kernel does not take this network; `reason` is one line that names what it does not know."""

    reason: str


class _NotKnown(Exception):
    """Ends a translation with a reason."""


class _Tracer(fx.Tracer):
    """Domain layers count as layers, too."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is taken as it is, not looked into."""
        return isinstance(m, DomainLayer) or super().is_leaf_module(m, module_qualified_name)


def plan(module: nn.Module, input_shape: tuple[int, ...], loss: Loss = "cross_entropy") -> Net | Refusal:
    """Translate a module for inputs of this shape (without the batch), or say why it cannot be done."""
    library = installed()
    if isinstance(library, str):
        return Refusal(library)
    return plan_with(library, module, input_shape, loss)


def plan_with(library: Library, module: nn.Module, input_shape: tuple[int, ...], loss: Loss) -> Net | Refusal:
    """`plan` for a given library."""
    try:
        if loss not in ("cross_entropy", "mse"):
            raise _NotKnown(f"the kernel knows the losses cross_entropy and mse, not {loss!r}")
        if getattr(module, "wants_side", False) and not isinstance(module, DomainNet):
            raise _NotKnown("the network looks at more than its input")
        twin = copy.deepcopy(module)
        shape = tuple(int(size) for size in input_shape)
        with _TRACING:
            net, evaluated = (_Translation(twin.train(mode), shape).net(library, loss) for mode in (True, False))
        if net.layers != evaluated.layers:
            raise _NotKnown("it computes something else in evaluation than in training")
        problem = difference(net, twin)
        if problem:
            raise _NotKnown(problem)
    except _NotKnown as refusal:
        return Refusal(str(refusal))
    return net


class _Translation:
    """Walks the traced graph once; `shape` is that of one sample behind the layers so far."""

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...]) -> None:
        if not input_shape or min(input_shape) < 1 or len(input_shape) not in (1, 3):
            raise _NotKnown(f"inputs of shape {input_shape} are neither vectors nor (channels, height, width)")
        self.input_shape = self.shape = self.maps = input_shape
        self.layers: list[Layer] = []
        self.offsets, self.size = _offsets_of(module)
        self.unused = set(self.offsets)
        self.inside = "network." if isinstance(module, DomainNet) else ""
        whole = module.network if isinstance(module, DomainNet) else module
        # A layer on its own is traced inside a container, so that it stays a layer.
        alone = type(whole) in (nn.Linear, nn.Conv2d)
        self.prefix = "0." if alone else ""
        root = nn.Sequential(whole) if alone else whole
        self.modules = dict(root.named_modules())
        try:
            graph = _Tracer().trace(root)
        except Exception as error:  # fx raises whatever the user's forward raises
            raise _NotKnown(
                f"its forward cannot be traced ({str(error).splitlines()[0] if str(error) else error!r})"
            ) from None
        self.values: dict[fx.Node, Any] = {}
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}
        self.current: fx.Node | None = None
        for node in graph.nodes:
            self._visit(node)
        if self.unused:
            raise _NotKnown(f"its parameter {min(self.unused)} is not used")

    def net(self, library: Library, loss: Loss) -> Net:
        """The result, once the walk is over."""
        kinds = [layer.kind for layer in self.layers]
        if "linear" not in kinds:
            raise _NotKnown("it has no linear layer at the end")
        for first, second in zip(kinds[kinds.index("linear") :], kinds[kinds.index("linear") + 1 :], strict=False):
            if "linear" not in (first, second):
                raise _NotKnown(f"{second} behind {first} follows a linear layer")
        self._check_domains()
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
        )

    def _visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            if self.current is not None:
                raise _NotKnown("its forward takes more than one input")
            self.current = node
            self.shapes[node] = self.shape
        elif node.op == "output":
            if node.args[0] is not self.current:
                raise _NotKnown("its forward does not return the last layer's output alone")
        elif node.op == "get_attr":
            raise _NotKnown(f"its forward uses {node.target} outside a layer")
        elif self._is_shape(node):
            self.values[node] = self._shape_value(node)
        else:
            self._layer(node)
            self.current = node
            self.shapes[node] = self.shape

    def _is_shape(self, node: fx.Node) -> bool:
        if node.op == "call_method":
            return node.target == "size"
        if node.op != "call_function":
            return False
        return node.target is getattr or (node.target is operator.getitem and node.args[0] in self.values)

    def _shape_value(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            index = node.args[1]
            if not isinstance(index, int | slice):
                raise _NotKnown("it indexes a shape in a way that is not known")
            return self.values[node.args[0]][index]  # type: ignore[index]
        if node.args[0] not in self.shapes:
            raise _NotKnown("it reads the size of something that is not a layer's output")
        whole = (_BATCH, *self.shapes[node.args[0]])  # type: ignore[index]
        if node.target is getattr:
            if node.args[1] != "shape":
                raise _NotKnown(f"its forward reads the attribute {node.args[1]} of a tensor")
            return whole
        index = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        return whole if index is None else whole[index]  # type: ignore[index]

    def _check_input(self, node: fx.Node) -> None:
        source = node.args[0] if node.args else None
        if source is not self.current:
            raise _NotKnown(f"its forward is not a chain: {node.name} does not follow the layer before it")

    def _layer(self, node: fx.Node) -> None:
        self._check_input(node)
        if node.op == "call_module":
            self._module(str(node.target), self.modules[str(node.target)], node)
            return
        target = node.target
        args: list[Any] = [self._known(arg) for arg in node.args[1:]]
        options: dict[str, Any] = {key: self._known(arg) for key, arg in node.kwargs.items() if key != "inplace"}
        if target in _ACTIVATIONS:
            args = [] if target is F.relu else args
            self._plain(node, args, options)
            self.layers.append(Layer(_ACTIVATIONS[target]))  # type: ignore[arg-type]
        elif target in _NOTHING:
            self._plain(node, args, options)
        elif target in _FLATTENS:
            start = options.pop("start_dim", args.pop(0) if args else 0)
            end = options.pop("end_dim", args.pop(0) if args else -1)
            self._flatten(start, end)
            self._plain(node, args, options)
        elif target in _RESHAPES:
            wanted: list[Any] = options.pop("shape", args)
            self._plain(node, [], options)
            self._reshape(wanted[0] if len(wanted) == 1 and isinstance(wanted[0], list) else wanted)
        elif target in _POOLS:
            names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
            self._pool("max_pool2d", {**dict(zip(names, args, strict=False)), **options})
        elif target is F.dropout:
            probability = options.get("p", args[0] if args else 0.5)
            if probability != 0:
                raise _NotKnown("dropout is not known to the kernel")
        else:
            name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
            raise _NotKnown(f"{name} is not known to the kernel")

    def _known(self, argument: Any) -> Any:
        """An argument with the shapes it refers to filled in."""
        if isinstance(argument, list | tuple):
            return [self._known(part) for part in argument]
        return self.values.get(argument, argument) if isinstance(argument, fx.Node) else argument

    def _plain(self, node: fx.Node, args: list[Any], options: dict[str, Any]) -> None:
        if args or options:
            raise _NotKnown(f"{node.name} has arguments that are not known")

    def _module(self, name: str, module: nn.Module, node: fx.Node) -> None:
        kind = type(module)
        label = f"{name} ({kind.__name__})"
        if len(node.args) != 1 or node.kwargs:
            raise _NotKnown(f"{label} is called with more than its input")
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        if any(getattr(module, hook, None) for hook in hooks):
            raise _NotKnown(f"{label} has hooks")
        if isinstance(module, nn.Linear) and kind is nn.Linear:
            self._linear(name, label, module.in_features, module.out_features)
        elif isinstance(module, nn.Conv2d) and kind is nn.Conv2d:
            self._convolution(name, label, module)
        elif isinstance(module, DomainLinear | DomainConv2d) and self._beyond_sums(module):
            raise _NotKnown(f"{label} has {self._beyond_sums(module)}, which is left to torch")
        elif isinstance(module, DomainLinear):
            self._linear(name, label, module.kernel_shape[1], module.kernel_shape[0], module.domains)
        elif isinstance(module, DomainConv2d):
            self._convolution(name, label, module.like, module.domains)
        elif kind in _ACTIVATION_MODULES:
            self.layers.append(Layer(_ACTIVATION_MODULES[kind]))  # type: ignore[arg-type]
        elif isinstance(module, nn.MaxPool2d) and kind is nn.MaxPool2d:
            names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
            self._pool(label, {name: getattr(module, name) for name in names})
        elif isinstance(module, nn.Flatten):
            self._flatten(module.start_dim, module.end_dim)
        elif isinstance(module, nn.Unflatten) and module.dim == 1 and len(self.shape) == 1:
            self._reshape([_BATCH, *module.unflattened_size])
        elif kind is nn.Identity or (isinstance(module, nn.Dropout | nn.Dropout2d) and module.p == 0):
            pass
        else:
            raise _NotKnown(f"layer {label} is not known to the kernel")

    def _use(self, module: str, parameter: str) -> int:
        name = self.inside + f"{module}.{parameter}".removeprefix(self.prefix)
        owner = self.modules[module]
        if owner._parameters.get(parameter) is None:
            return -1
        if name not in self.unused:
            raise _NotKnown(f"its parameter {name} is used twice or shared")
        self.unused.remove(name)
        return self.offsets[name]

    @staticmethod
    def _beyond_sums(layer: DomainLayer) -> str:
        """What keeps a domain from having one kernel that is made by nothing but sums; "" where it has one."""
        if layer.graph is not None and layer.graph.kind != "none":
            return f"a graph with W = {layer.graph.kind}"
        if layer.on_activation or (layer.graph is not None and layer.graph.relu):
            return "a ReLU on its residual"
        return "" if layer.agnostic else "no part for all domains"

    def _check_domains(self) -> None:
        """The kernel has domains in one layer alone, linear or the last convolution."""
        places = [place for place, layer in enumerate(self.layers) if layer.domains]
        if len(places) > 1:
            raise _NotKnown("it has domains in more than one layer")
        kinds = [layer.kind for layer in self.layers]
        if not places or kinds[places[0]] == "linear":
            return
        behind = kinds[places[0] + 1 : kinds.index("linear")]
        named = tuple("pool" if kind == "pool" else "activation" for kind in behind)
        if "convolution" in behind or named not in _BEHIND_DOMAINS:
            raise _NotKnown("it has domains in another convolution than the last")

    def _parts(self, name: str, domains: int) -> tuple[int, ...]:
        """Where the parameters of a layer begin, as `Layer` wants them."""
        own = (self._use(name, "weight"), self._use(name, "bias"))
        return (*own, domains, self._use(name, "residual"), self._use(name, "scale")) if domains else own

    def _linear(self, name: str, label: str, inputs: int, outputs: int, domains: int = 0) -> None:
        if self.shape != (inputs,):
            raise _NotKnown(f"{label} gets inputs of shape {self.shape}, not vectors of {inputs}")
        self.layers.append(Layer("linear", outputs, (1, 1), (0, 0), *self._parts(name, domains)))
        self.shape = (outputs,)

    def _convolution(self, name: str, label: str, module: nn.Conv2d, domains: int = 0) -> None:
        if (module.stride, module.dilation, module.groups) != ((1, 1), (1, 1), 1) or module.padding_mode != "zeros":
            raise _NotKnown(f"{label} has a stride, dilation, groups or padding mode that is not known to the kernel")
        height, width = module.kernel_size
        if module.padding == "valid":
            padding = (0, 0)
        elif module.padding == "same":
            if height % 2 == 0 or width % 2 == 0:
                raise _NotKnown(f"{label} pads unevenly")
            padding = (height // 2, width // 2)
        else:
            padding = (int(module.padding[0]), int(module.padding[1]))
        if len(self.shape) != 3 or self.shape[0] != module.in_channels or self._has_linear():
            raise _NotKnown(f"{label} gets inputs of shape {self.shape}, not maps with {module.in_channels} channels")
        rows, columns = self.shape[1] + 2 * padding[0] - height + 1, self.shape[2] + 2 * padding[1] - width + 1
        if rows < 1 or columns < 1:
            raise _NotKnown(f"{label} is larger than its input of shape {self.shape}")
        self.layers.append(
            Layer("convolution", module.out_channels, (height, width), padding, *self._parts(name, domains))
        )
        self.shape = (module.out_channels, rows, columns)

    def _pool(self, label: str, options: dict[str, Any]) -> None:
        def pair(value: Any) -> tuple[Any, Any]:
            return tuple(value) if isinstance(value, list | tuple) else (value, value)

        kernel = pair(options.pop("kernel_size", None))
        stride = options.pop("stride", None)
        stride = kernel if stride is None or stride in ((), []) else pair(stride)
        rest = (pair(options.pop("padding", 0)), pair(options.pop("dilation", 1)))
        flags = options.pop("ceil_mode", False) or options.pop("return_indices", False)
        options.pop("return_indices", None)
        if (kernel, stride, *rest) != ((2, 2), (2, 2), (0, 0), (1, 1)) or flags or options:
            raise _NotKnown(f"{label} is not a plain 2x2 pool with stride 2")
        if len(self.shape) != 3 or self._has_linear() or min(self.shape[1:]) < 2:
            raise _NotKnown(f"{label} gets inputs of shape {self.shape}")
        self.layers.append(Layer("pool"))
        self.shape = (self.shape[0], self.shape[1] // 2, self.shape[2] // 2)

    def _has_linear(self) -> bool:
        return any(layer.kind == "linear" for layer in self.layers)

    def _flatten(self, start: Any, end: Any) -> None:
        if start != 1 or end not in (-1, len(self.shape)):
            raise _NotKnown("a flatten does not keep exactly the samples apart")
        self.shape = (math.prod(self.shape),)

    def _reshape(self, wanted: list[Any]) -> None:
        """A reshape that flattens, or that makes maps of vectors before the first layer."""
        size = math.prod(self.shape)
        if not wanted or any(value is not _BATCH and not isinstance(value, int) for value in wanted):
            raise _NotKnown("a reshape has sizes that are not known")
        rest = wanted[1:]
        if _BATCH in rest or rest.count(-1) > (wanted[0] is _BATCH):
            raise _NotKnown("a reshape mixes the samples")
        known = math.prod(value for value in rest if value != -1)
        rest = [size // known if value == -1 and known else value for value in rest]
        if (wanted[0] is not _BATCH and wanted[0] != -1) or not rest or math.prod(rest) != size:
            raise _NotKnown("a reshape mixes the samples")
        if tuple(rest) == self.shape:
            return
        if len(rest) == 3 and not self.layers:
            self.maps = tuple(rest)
        elif len(rest) != 1:
            raise _NotKnown("a reshape between layers does more than flatten")
        self.shape = tuple(rest)


def _offsets_of(module: nn.Module) -> tuple[dict[str, int], int]:
    """Where each parameter begins in the flat vector."""
    if {name for name, _ in module.named_buffers()} - ({"adjacency"} if isinstance(module, DomainNet) else set()):
        raise _NotKnown("it holds buffers (running statistics, masks)")
    offsets, size = {}, 0
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            raise _NotKnown(f"its parameter {name} is frozen")
        offsets[name] = size
        size += parameter.numel()
    if len(list(module.named_parameters(remove_duplicate=False))) != len(offsets):
        raise _NotKnown("it shares a parameter between layers")
    return offsets, size
