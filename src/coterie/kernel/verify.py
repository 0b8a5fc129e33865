"""A translation beside the module it was made from: the last word on whether the kernel may take it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coterie.core.rng import torch_rng
from coterie.kernel.chain import Routed
from coterie.kernel.net import Net, Routing

_SAMPLES = 3
_TOLERANCE = 1e-9


def difference(net: Net, reference: nn.Module, routed: Routed | None) -> str | None:
    """Run both on random weights and inputs in float64, and say what differs. Overwrites `reference`."""
    generator = torch_rng(0, "kernel-check")
    reference = reference.to("cpu", torch.float64)
    flat = torch.empty(net.size, dtype=torch.float64)
    start = 0
    with torch.no_grad():
        for parameter in reference.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 1
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / math.sqrt(fan_in)
            parameter.copy_(values)
            flat[start : start + parameter.numel()] = values.flatten()
            start += parameter.numel()
        statistics = dict(reference.named_buffers())
        for name in net.buffers:
            values = torch.randn(statistics[name].shape, generator=generator, dtype=torch.float64)
            statistics[name].copy_(values.abs() + 0.5 if name.endswith("running_var") else values)
            flat[start : start + values.numel()] = statistics[name]
            start += values.numel()
        x = torch.randn(_SAMPLES, *net.input_shape, generator=generator, dtype=torch.float64)
        for column, rows in enumerate(net.rows_named):
            if rows:
                x[:, column] = torch.randint(0, rows, (_SAMPLES,), generator=generator).to(x.dtype)
        mix = getattr(reference, routed.mix) if routed else None
        route = Routing(torch.arange(_SAMPLES) % net.domains, mix) if routed else None
        try:
            seen = x.long() if all(net.rows_named) else x  # token ids reach a network as whole numbers
            expected: Tensor = reference(seen) if route is None else reference(seen, route.domains)
        except Exception as error:  # the user's forward may raise anything
            return f"its forward fails on a random batch ({error})"
    found = net.logits(flat[None], x, route)[0]
    scale = 1.0 + float(expected.abs().max())
    if expected.shape != found.shape or not torch.allclose(expected, found, rtol=0, atol=_TOLERANCE * scale):
        return "its outputs differ from those of the translation"
    return None
