"""The boundary to the user's own code: the model's builder, its forward, the loss, a method of the user's own.

Whatever goes wrong in there is the user's to put right, so it becomes one sentence. It names the exception, the shape
that went in, and the last line of the user's that was reached.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import CoterieError, unknown

_NOT_THE_USERS = (Path(__file__).parent, Path(torch.__file__).parent, Path(sys.prefix), Path(sys.base_prefix) / "lib")

_LOADED: dict[tuple[str, int, int], ModuleType] = {}


def load(name: str, what: str) -> Any:
    """An object of the user's, named `file.py:NAME` or `package.module:NAME`; `what` says what it is for."""
    path, colon, attribute = name.rpartition(":")
    if not colon:
        raise CoterieError(f"{name} is a file; name the {what} in it: {name}:NAME.")
    found = getattr(_module(path, what), attribute, None)
    if found is None:
        raise CoterieError(f"{path} has no {attribute!r} to take a {what} from.")
    return found


def is_code(name: str) -> bool:
    """Whether a name is that of code of the user's."""
    return ":" in name or name.endswith(".py")


def loaded_if_code(name: Any, what: str) -> Any:
    """What a setting means: an object of the user's where it names one, else the name itself."""
    return load(name, what) if isinstance(name, str) and is_code(name) else name


def _module(path: str, what: str) -> ModuleType:
    if path.endswith(".py") and not Path(path).is_file():
        raise CoterieError(f"There is no file {path} to take a {what} from.")
    try:
        if not path.endswith(".py"):
            return importlib.import_module(path)
        file = Path(path).resolve()
        # run once as it is: two runs of a file would make two classes of one name
        key = (str(file), file.stat().st_mtime_ns, file.stat().st_size)
        if key in _LOADED:
            return _LOADED[key]
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        with _no_bytecode():
            spec.loader.exec_module(module)
        _LOADED[key] = module
        return module
    except Exception as error:  # the user's code can fail in any way
        raise CoterieError(
            f"{path}, which has the {what}, cannot be imported: {said(error)}{_place(error)}."
        ) from error


@contextmanager
def _no_bytecode() -> Iterator[None]:
    """Python keeps no __pycache__ beside the user's files."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def build(model: Callable[[], nn.Module], name: str = "") -> nn.Module:
    """Call a builder, which may be the class of a network."""
    name = name or getattr(model, "__name__", type(model).__name__)
    if not callable(model):
        raise CoterieError(
            f"The model is of type {type(model).__name__}; "
            "pass a torch.nn.Module, its class, or a function that builds one."
        )
    try:
        made = model()
    except CoterieError:
        raise
    except Exception as error:  # the user's code can fail in any way
        remedy = "it must build the model without arguments"
        if isinstance(model, type) and isinstance(error, TypeError):
            remedy += f": a function such as `lambda: {model.__name__}(...)` can give those that it needs"
        raise CoterieError(f"{name}() fails: {said(error)}{_place(error)}; {remedy}.") from error
    if not isinstance(made, nn.Module):
        raise CoterieError(f"{name}() must return a torch.nn.Module, not a {type(made).__name__}.")
    return made


def failed_forward(error: Exception, given: Tensor) -> CoterieError:
    """The sentence for a network that fails on a batch."""
    return CoterieError(
        f"The model fails on a batch of shape {tuple(given.shape)}: {said(error)}{_place(error)}; "
        "put its forward right, or choose a model for such inputs."
    )


def loss_of(function: Callable[[Tensor, Tensor], Tensor], output: Tensor, target: Tensor) -> Tensor:
    """The user's loss, which must be one number a batch."""
    try:
        loss = function(output, target)
    except CoterieError:
        raise
    except Exception as error:
        raise CoterieError(
            f"The loss fails on outputs of {_shape(output)} and targets of {_shape(target)}: "
            f"{said(error)}{_place(error)}; let the model's outputs, the targets and the loss fit together."
        ) from error
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        is_tensor = isinstance(loss, Tensor)
        what = f"a tensor of shape {tuple(loss.shape)}" if is_tensor else f"a {type(loss).__name__}"
        raise CoterieError(
            f"The loss returns {what}; let it return one number as a tensor, the mean over the batch "
            "(reduction='mean')."
        )
    if output.requires_grad and not loss.requires_grad:
        raise CoterieError(
            "The loss has no gradient with respect to the outputs; compute it from them with torch operations, "
            "without detach, item or no_grad."
        )
    return loss


def number_of(function: Callable[[Tensor, Tensor], Any], name: str, prediction: Tensor, target: Tensor) -> float:
    """The value of the user's metric, which must be one number."""
    try:
        return float(function(prediction, target))
    except CoterieError:
        raise
    except Exception as error:  # the user's code can fail in any way
        raise CoterieError(
            f"The metric {name} fails on predictions of {_shape(prediction)} and targets of {_shape(target)}: "
            f"{said(error)}{_place(error)}; let it return one number for them."
        ) from error


def check_loss(loss: Any, known: Collection[str]) -> None:
    """Refuse a loss that is neither a known name nor a function."""
    if isinstance(loss, str) and loss not in known:
        raise unknown("loss", loss, known)
    if not isinstance(loss, str) and not callable(loss):
        raise CoterieError(
            f"The loss is of type {type(loss).__name__}; "
            f"give a name ({', '.join(known)}) or a function (output, target)."
        )


def check_shapes(function: Callable[[Tensor, Tensor], Tensor], targets: torch.dtype) -> None:
    """Refuse a loss in which outputs [n, 1] and targets [n] become [n, n]: it would learn the mean of all targets.

    Such a loss is the same whichever output the targets belong to, but for outputs of shape [n]. One that pairs samples
    on purpose (a ranking) is not, nor is one that compares them one by one.
    """
    output = torch.tensor([[0.3], [0.8]])
    target = torch.tensor([0.4, 0.9]) if targets.is_floating_point else torch.tensor([0, 1])
    orders = [target.to(targets), target.flip(0).to(targets)]
    try:
        crossed, each = (
            [function(shaped.clone().requires_grad_(), order) for order in orders]
            for shaped in (output, output.squeeze(1))
        )
    except Exception:  # it wants outputs of one shape alone, so it knows what it does with them
        return
    if torch.allclose(crossed[0], crossed[1]) and not torch.allclose(each[0], each[1], equal_nan=True):
        raise CoterieError(
            "The loss compares outputs of shape [n, 1] with targets of shape [n], which gives every pair of samples; "
            "take the outputs as output.squeeze(1) there."
        )


def gradients(loss: Tensor, weights: Sequence[Tensor], given: Tensor) -> Sequence[Tensor | None]:
    """The gradient of the loss; a forward that works in place may fail only now."""
    try:
        return torch.autograd.grad(loss, weights, allow_unused=True)
    except RuntimeError as error:
        raise CoterieError(
            f"The gradient of the loss fails for a batch of shape {tuple(given.shape)}: {said(error)}; "
            "put the model's forward or the loss right."
        ) from error


def _shape(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"


def said(error: BaseException) -> str:
    """An exception in one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text}".splitlines()[0].rstrip(".") if text else type(error).__name__


def _place(error: BaseException) -> str:
    """Where in the user's files it happened, or nothing where no line of theirs was reached."""
    found = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if not any(file.is_relative_to(folder) for folder in _NOT_THE_USERS) and not file.name.startswith("<frozen"):
            found = f" ({_short(file)}:{trace.tb_lineno})"
        trace = trace.tb_next
    return found


def _short(file: Path) -> Path:
    """The path as one would type it here."""
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
