"""Samples D_j^k that cluster models believe in, made on the server from nothing but the models (section 3.3).

Both ways minimise the cross-entropy of the wanted class plus lambda / 2 times the distance to the prior mean. Norms are
per sample. The networks are in evaluation mode and stay as they are; only pixels or generators learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.compiled import InputGradients
from coterie.core.input_gradients import input_gradients
from coterie.core.optimiser import Updates
from coterie.core.samples import Samples
from coterie.core.states import Stack, clone, count
from coterie.core.task import Task
from coterie.methods.md_icfl.messages import Distanced
from coterie.methods.md_icfl.settings import MDICFLSettings

_TINY = 1e-12  # the norm has no gradient at 0
_EPS = 1e-5


@dataclass(frozen=True)
class PseudoData:
    """The data sets D_j^k of all clusters, [K, C, M, ...], and the generators that drew them, where generators did."""

    samples: Tensor
    generators: Stack | None = None


def pseudo_data(settings: MDICFLSettings, state: Distanced, task: Task, g: torch.Generator) -> PseudoData:
    """D_j^k by equation 6 (back-search) or 7 (generator), from noise or (ours: warm) from those of the last round."""
    if settings.prior_mean is not None or not state.means:
        mean = torch.full((settings.k, 1), settings.prior_mean or 0.0)
    else:
        mean = prior_means(state.means, state.cluster, settings.k)
    goal = Objective(mean, settings.prior, settings.prior_squared, settings.clip)
    if settings.sampling == "back-search":
        last = state.samples if settings.warm_steps else None
        shape = (settings.k, task.classes, settings.per_class, *task.shape)
        start = torch.randn(shape, generator=g) if last is None else last
        steps = settings.steps if last is None else settings.warm_steps
        return PseudoData(back_search(task, state.models, start, goal, steps, settings.search_lr))
    first, steps = state.generators if settings.generator_warm_steps else None, settings.generator_warm_steps
    if first is None:
        steps = settings.generator_steps
        first = fresh_generators(task.shape, task.classes, mean, settings.noise, settings.generator_hidden, g)
    lr, batch = settings.generator_lr, settings.generator_batch
    generators = train_generators(task, state.models, first, goal, steps=steps, lr=lr, batch=batch, g=g)
    return PseudoData(draw(task, generators, settings.per_class, goal, g), generators)


@dataclass(frozen=True)
class Objective:
    """Equations 6 and 7: `mean` [K, channels] (or [K, 1]) is the prior mean of every cluster, in the input space."""

    mean: Tensor
    strength: float = 0.1
    squared: bool = False
    clip: float = 0.0

    def pull(self, x: Tensor) -> Tensor:
        """The gradient of the prior term lambda / 2 * |x - mean| (or its square) at samples [K, n, ...]."""
        gap: Tensor = x - self.mean.to(x.dtype).view(len(x), 1, -1, *[1] * (x.dim() - 3))
        if self.squared:
            return gap * self.strength
        length: Tensor = gap.flatten(2).norm(dim=2).clamp_min(_TINY)
        return gap * (self.strength / (2 * length)).view(*length.shape, *[1] * (x.dim() - 2))

    def within(self, x: Tensor) -> Tensor:
        """The samples, kept in their range where there is one."""
        return x.clamp(-self.clip, self.clip) if self.clip else x


def _gradients(task: Task, read: InputGradients, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed cross-entropies [K] of samples [K, n, ...] with labels [K, n] under the clusters' models; its gradient."""
    each = [read(j, part.detach().to(task.dtype), labels[j]) for j, part in enumerate(x)]
    return torch.tensor([loss for loss, _ in each]), torch.stack([gradient for _, gradient in each]).to(x.dtype)


def back_search(task: Task, clusters: Stack, start: Tensor, objective: Objective, steps: int, lr: float) -> Tensor:
    """Adam on the pixels: samples [K, C, M, ...] of class k for every cluster, from `start`."""
    k, classes, per_class = start.shape[:3]
    labels = torch.arange(classes).repeat_interleave(per_class).expand(k, -1)
    x = start.flatten(1, 2).clone()
    read, adam = input_gradients(task, clusters), Updates([x], "adam", lr)
    for _ in range(steps):
        adam.step([_gradients(task, read, x, labels)[1] + objective.pull(x)])
        if objective.clip:
            x.copy_(objective.within(x))
    return x.view(start.shape)


def fresh_generators(
    shape: tuple[int, ...], classes: int, mean: Tensor, noise: int, hidden: int, g: torch.Generator
) -> Stack:
    """K generators: noise + one-hot label -> hidden, BatchNorm, ReLU -> input; they begin near the prior mean."""
    k, width = mean.shape[0], int(torch.Size(shape).numel())

    def uniform(*size: int, fan_in: int) -> Tensor:
        return (torch.rand(size, generator=g) * 2 - 1).div(fan_in**0.5)

    centre = mean.float()[:, :, None].expand(k, mean.shape[1], width // mean.shape[1])
    return {
        "in.weight": uniform(k, noise + classes, hidden, fan_in=noise + classes),
        "in.bias": uniform(k, 1, hidden, fan_in=noise + classes),
        "norm.weight": torch.ones(k, 1, hidden),
        "norm.bias": torch.zeros(k, 1, hidden),
        "out.weight": uniform(k, hidden, width, fan_in=hidden),
        "out.bias": centre.reshape(k, 1, width).clone(),
    }


def generate(generators: Stack, noise: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Outputs of the K generators, flat: noise [K, n, z] and labels [K, n] -> [K, n, width].

    BatchNorm takes the statistics of the batch: batches hold all classes alike, in training and in drawing.
    """
    inputs = torch.cat([noise, F.one_hot(labels, classes).to(noise.dtype)], dim=-1)
    hidden = torch.baddbmm(generators["in.bias"], inputs, generators["in.weight"])
    centred = hidden - hidden.mean(1, keepdim=True)
    normal = centred / (centred.square().mean(1, keepdim=True) + _EPS).sqrt()
    hidden = F.relu(normal * generators["norm.weight"] + generators["norm.bias"])
    return torch.baddbmm(generators["out.bias"], hidden, generators["out.weight"])


def train_generators(
    task: Task,
    clusters: Stack,
    start: Stack,
    objective: Objective,
    *,
    steps: int,
    lr: float,
    batch: int,
    g: torch.Generator,
) -> Stack:
    """Adam on the generators of all clusters at once, labels uniform (equation 7)."""
    k, noise_size = count(clusters), start["in.weight"].shape[1] - task.classes
    weights = {name: tensor.requires_grad_() for name, tensor in clone(start).items()}
    values = list(weights.values())
    read, adam = input_gradients(task, clusters), Updates([tensor.detach() for tensor in values], "adam", lr)
    for _ in range(steps):
        noise = torch.randn(k, batch, noise_size, generator=g)
        labels = torch.randint(task.classes, (k, batch), generator=g)
        made = objective.within(generate(weights, noise, labels, task.classes)).view(k, batch, *task.shape)
        x = made.detach()
        adam.step(torch.autograd.grad(made, values, (_gradients(task, read, x, labels)[1] + objective.pull(x)) / batch))
    return {name: tensor.detach() for name, tensor in weights.items()}


def draw(task: Task, generators: Stack, per_class: int, objective: Objective, g: torch.Generator) -> Tensor:
    """M samples of every class from every generator: [K, C, M, ...]."""
    k, noise_size = count(generators), generators["in.weight"].shape[1] - task.classes
    labels = torch.arange(task.classes).repeat_interleave(per_class).expand(k, -1)
    with torch.no_grad():
        noise = torch.randn(k, labels.shape[1], noise_size, generator=g)
        x = objective.within(generate(generators, noise, labels, task.classes))
    return x.view(k, task.classes, per_class, *task.shape)


def sample_loss(task: Task, clusters: Stack, samples: Tensor) -> float:
    """The mean cross-entropy of the samples under their own cluster's model: above 0.5 the prior has the upper hand."""
    classes, per_class = samples.shape[1:3]
    labels = torch.arange(classes).repeat_interleave(per_class).expand(len(samples), -1)
    losses, _ = _gradients(task, input_gradients(task, clusters), samples.flatten(1, 2), labels)
    return float(losses.sum()) / labels.numel()


def brightness(task: Task, data: Sequence[Samples]) -> Tensor:
    """What clients say of the prior's mean: the mean input per channel of images, over all features otherwise; [N, .].

    0 for a client without any samples.
    """
    means = []
    for samples in data:
        x = task.inputs(samples.x) if len(samples) else torch.zeros(1, *task.shape)
        means.append(x.mean((0, 2, 3)) if x.dim() == 4 else x.mean().view(1))
    return torch.stack(means)


def prior_means(said: Mapping[str, Tensor], cluster: Mapping[str, int], k: int) -> Tensor:
    """mu of every cluster: the mean over its clients of what they said, over all clients where it has none."""
    everyone = torch.stack([said[client] for client in sorted(said)])
    rows = [[said[client] for client in sorted(said) if cluster.get(client) == j] for j in range(k)]
    return torch.stack([torch.stack(mine).mean(0) if mine else everyone.mean(0) for mine in rows])
