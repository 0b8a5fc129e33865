"""Which device computes: the processor, or an accelerator that torch knows.

States, messages and data are always in the processor's memory. What computes with them (local training, evaluation,
sums of models) brings them to the device and its results back, so no method has to know where it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from coterie.core.errors import CoterieError

CPU = torch.device("cpu")
_WITHOUT_DOUBLE = ("mps",)
_current = CPU


def chosen(name: str) -> torch.device:
    """The device that a setting names: auto, cpu, cuda, cuda:1, mps, xpu, or any other that torch knows."""
    if name == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return CPU if found is None else torch.device(found.type)
    try:
        device = torch.device(name)
        if device.type != "cpu":
            torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).strip().splitlines()[0]
        raise CoterieError(f"engine.device = {name} cannot be used here ({why}); use cpu, or auto.") from error
    return CPU if device.type == "cpu" else device


def all_of(device: torch.device) -> list[torch.device]:
    """The devices that share the work: the one that is numbered, or all of its kind."""
    if device.type == "cpu" or device.index is not None:
        return [device]
    number = int(torch.get_device_module(device).device_count())
    return [torch.device(device.type, index) for index in range(max(1, number))]


@contextmanager
def computing_on(device: torch.device) -> Iterator[None]:
    """Have sums of models computed there."""
    global _current
    before, _current = _current, device
    try:
        yield
    finally:
        _current = before


def there(tensor: Tensor, *, double: bool = False) -> Tensor:
    """Numbers to compute with, on the device; with `double`, only if it computes in double precision."""
    return tensor if double and _current.type in _WITHOUT_DOUBLE else tensor.to(_current)


def seed(device: torch.device, value: int) -> None:
    """Seed what layers draw from (dropout) on this device."""
    torch.default_generator.manual_seed(value)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(value)
