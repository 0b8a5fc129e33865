"""From an `nn.Module` to the layers the kernel knows, or the reason why not.

torch.fx shows what `forward` does. Only a chain of known layers, written as modules or as functions, with every
parameter used once, is accepted; then the translation is run beside the module on random numbers, as a last word.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from coterie.core.compiled import Refusal
from coterie.core.task import DRAWING
from coterie.kernel import known  # noqa: F401 (registers its layers)
from coterie.kernel.chain import BATCH, LAYERS, NETWORKS, Chain, NotKnown
from coterie.kernel.columns import Front
from coterie.kernel.layers import Kind, Loss
from coterie.kernel.library import Library, installed
from coterie.kernel.net import Net
from coterie.kernel.sequences import Sequences
from coterie.kernel.structure import structure
from coterie.kernel.verify import difference

_ACTIVATIONS: dict[Any, Kind] = {
    **dict.fromkeys((torch.relu, torch.relu_, F.relu, F.relu_, "relu", "relu_"), "relu"),
    **dict.fromkeys((torch.tanh, F.tanh, "tanh", "tanh_"), "tanh"),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid", "sigmoid_"), "sigmoid"),
    F.relu6: "relu6",
}
_RESHAPES: frozenset[Any] = frozenset(("view", "reshape", torch.reshape))
_FLATTENS: frozenset[Any] = frozenset(("flatten", torch.flatten))
_POOLS: frozenset[Any] = frozenset((F.max_pool2d, torch.max_pool2d))
_AVERAGES: frozenset[Any] = frozenset((F.avg_pool2d, torch._C._nn.avg_pool2d))
_ADDITIONS: frozenset[Any] = frozenset((operator.add, operator.iadd, torch.add, "add", "add_"))
_MEANS: frozenset[Any] = frozenset(("mean", torch.mean))
_NOTHING: frozenset[Any] = frozenset(("contiguous",))
_MOST_PLANS = 64
_PLANS: dict[Hashable, Net | Refusal] = {}
"""Plans for networks of torch's own layers, by structure: a plan takes ten milliseconds, which many short runs feel."""


def plan(module: nn.Module, input_shape: tuple[int, ...], loss: Loss = "cross_entropy") -> Net | Refusal:
    """Translate a module for inputs of this shape (without the batch), or say why it cannot be done."""
    library = installed()
    if isinstance(library, str):
        return Refusal(library)
    alike = structure(module)
    if alike is None:
        return plan_with(library, module, input_shape, loss)
    key = (library, alike, tuple(input_shape), loss, tuple(LAYERS.items()), tuple(NETWORKS.items()))
    found = _PLANS.get(key)
    if found is None:
        if len(_PLANS) >= _MOST_PLANS:
            _PLANS.clear()
        found = _PLANS[key] = plan_with(library, module, input_shape, loss)
    return found


def plan_with(library: Library, module: nn.Module, input_shape: tuple[int, ...], loss: Loss) -> Net | Refusal:
    """`plan` for a given library."""
    try:
        if loss not in ("cross_entropy", "mse"):
            raise NotKnown(f"the kernel knows the losses cross_entropy and mse, not {loss!r}")
        if getattr(module, "wants_extra", False) and type(module) not in NETWORKS:
            raise NotKnown("the network looks at more than its input")
        twin = copy.deepcopy(module)
        shape = tuple(int(size) for size in input_shape)
        with DRAWING:  # torch.fx patches torch while it traces
            net, evaluated = (_translated(twin.train(mode), shape).net(library, loss) for mode in (True, False))
        if net.layers != evaluated.layers:
            raise NotKnown("it computes something else in evaluation than in training")
        problem = difference(net, twin, NETWORKS.get(type(twin)))
        if problem:
            raise NotKnown(problem)
    except NotKnown as refusal:
        return Refusal(str(refusal))
    return net


class _Tracer(fx.Tracer):
    """Registered layers count as layers, too."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is taken as it is, not looked into."""
        return type(m) in LAYERS or super().is_leaf_module(m, module_qualified_name)


def _translated(module: nn.Module, input_shape: tuple[int, ...]) -> Chain:
    chain = Chain(module, input_shape)
    try:
        graph = _Tracer().trace(chain.root)
    except Exception as error:  # fx raises whatever the user's forward raises
        raise NotKnown(
            f"its forward cannot be traced ({str(error).splitlines()[0] if str(error) else error!r})"
        ) from None
    _Walk(chain, graph)
    return chain


class _Walk:
    """Goes once through the traced graph and adds what it finds to the chain."""

    def __init__(self, chain: Chain, graph: fx.Graph) -> None:
        self.chain, self.front = chain, Front(chain)
        self.sequences = Sequences(chain, self.front)
        self.values: dict[fx.Node, Any] = {}
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}
        self.current: fx.Node | None = None
        self.places: dict[fx.Node, int] = {}
        self.adds = any(node.target in _ADDITIONS for node in graph.nodes)
        for node in graph.nodes:
            self._visit(node)
        self.front.check()

    def _visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            if self.current is not None:
                raise NotKnown("its forward takes more than one input")
            self.current = node
            self.shapes[node], self.places[node] = self.chain.shape, self.chain.place
            self.front.begin(node)
        elif node.op == "output":
            if node.args[0] is not self.current:
                raise NotKnown("its forward does not return the last layer's output alone")
        elif node.op == "get_attr":
            self.sequences.name(node)
        elif self._is_shape(node):
            self.values[node] = self._shape_value(node)
        elif self.front.takes(node):
            self.shapes[node] = self.front.add(node, self.values)
            self.current = node
        elif self.sequences.takes(node):
            self.shapes[node] = self.sequences.add(node)
            if node in self.sequences.last:
                self.current = node
        else:
            self._layer(node)
            self.current = node
            self.shapes[node], self.places[node] = self.chain.shape, self.chain.place

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
                raise NotKnown("it indexes a shape in a way that is not known")
            return self.values[node.args[0]][index]  # type: ignore[index]
        if node.args[0] not in self.shapes:
            raise NotKnown("it reads the size of something that is not a layer's output")
        whole = (BATCH, *self.shapes[node.args[0]])  # type: ignore[index]
        if node.target is getattr:
            if node.args[1] != "shape":
                raise NotKnown(f"its forward reads the attribute {node.args[1]} of a tensor")
            return whole
        index = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        return whole if index is None else whole[index]  # type: ignore[index]

    def _check_input(self, node: fx.Node) -> None:
        source = node.args[0] if node.args else None
        if self.front.read(source):
            return
        if self.adds and isinstance(source, fx.Node) and source in self.places:  # a branch that is added to another
            self.chain.place, self.chain.shape = self.places[source], self.shapes[source]
        elif source is not self.current:
            raise NotKnown(f"its forward is not a chain: {node.name} does not follow the layer before it")

    def _add(self, node: fx.Node) -> None:
        summands = [each for each in node.args if isinstance(each, fx.Node) and each in self.places]
        if len(summands) != 2 or len(node.args) != 2 or node.kwargs:
            raise NotKnown("an add of anything but two maps is not known to the kernel")
        first, second = summands
        if self.shapes[first] != self.shapes[second]:
            raise NotKnown(
                f"an add of shapes {self.shapes[first]} and {self.shapes[second]} is not known to the kernel"
            )
        self.chain.shape = self.shapes[first]
        self.chain.addition(self.places[first], self.places[second])

    def _layer(self, node: fx.Node) -> None:
        if node.target in _ADDITIONS:
            self._add(node)
            return
        self._check_input(node)
        if node.op == "call_module":
            self._module(str(node.target), self.chain.modules[str(node.target)], node)
            return
        target = node.target
        args: list[Any] = [self._known(arg) for arg in node.args[1:]]
        options: dict[str, Any] = {key: self._known(arg) for key, arg in node.kwargs.items() if key != "inplace"}
        if target in _ACTIVATIONS:
            args = [] if target in (F.relu, F.relu6) else args
            self._plain(node, args, options)
            self.chain.activation(_ACTIVATIONS[target])
        elif target in _NOTHING:
            self._plain(node, args, options)
        elif target in _FLATTENS:
            start = options.pop("start_dim", args.pop(0) if args else 0)
            end = options.pop("end_dim", args.pop(0) if args else -1)
            self.chain.flatten(start, end)
            self._plain(node, args, options)
        elif target in _RESHAPES:
            wanted: list[Any] = options.pop("shape", args)
            self._plain(node, [], options)
            self.chain.reshape(wanted[0] if len(wanted) == 1 and isinstance(wanted[0], list) else wanted)
        elif target in _POOLS:
            names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
            self.chain.pool("max_pool2d", {**dict(zip(names, args, strict=False)), **options})
        elif not self._averaged_or_dropped(target, args, options):
            name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
            raise NotKnown(f"{name} is not known to the kernel")

    def _averaged_or_dropped(self, target: Any, args: list[Any], options: dict[str, Any]) -> bool:
        """Whether it is a function that takes means, or dropout; then it is in the chain."""
        if target in _AVERAGES:
            names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
            self.chain.average_pool("avg_pool2d", {**dict(zip(names, args, strict=False)), **options})
        elif target is F.adaptive_avg_pool2d:
            self.chain.average_to("adaptive_avg_pool2d", options.get("output_size", args[0] if args else None))
        elif target in _MEANS:
            self._mean({**dict(zip(("dim", "keepdim", "dtype"), args, strict=False)), **options})
        elif target is F.dropout:
            self._dropout({**dict(zip(("p", "training"), args, strict=False)), **options})
        else:
            return False
        return True

    def _mean(self, options: dict[str, Any]) -> None:
        """A mean over whole maps is the other way to write a global average pool."""
        dims = options.pop("dim", None)
        keep = options.pop("keepdim", False)
        if not isinstance(dims, list) or sorted(dim % 4 for dim in dims) != [2, 3] or options:
            raise NotKnown("a mean that is not over whole maps is not known to the kernel")
        self.chain.average_to("mean", 1)
        if not keep:
            self.chain.flatten(1, -1)

    def _dropout(self, options: dict[str, Any]) -> None:
        """The function, which is told whether it is in training; what it does in evaluation must be nothing."""
        rate = options.get("p", 0.5)
        if rate and bool(options.get("training", True)) != self.chain.root.training:
            raise NotKnown("a dropout does not follow the network's mode")
        self.chain.dropout("dropout", rate)

    def _known(self, argument: Any) -> Any:
        """An argument with the shapes it refers to filled in."""
        if isinstance(argument, list | tuple):
            return [self._known(part) for part in argument]
        return self.values.get(argument, argument) if isinstance(argument, fx.Node) else argument

    def _plain(self, node: fx.Node, args: list[Any], options: dict[str, Any]) -> None:
        if args or options:
            raise NotKnown(f"{node.name} has arguments that are not known")

    def _module(self, name: str, module: nn.Module, node: fx.Node) -> None:
        label = self.chain.label(name)
        if len(node.args) != 1 or node.kwargs:
            raise NotKnown(f"{label} is called with more than its input")
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        if any(getattr(module, hook, None) for hook in hooks):
            raise NotKnown(f"{label} has hooks")
        self.chain.add(name, module)
