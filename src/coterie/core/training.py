"""The only training loop of the package.

How a client is computed (by a compiled backend or by torch) is decided here, behind one signature, and never changes
what is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core import side_by_side, user_code
from coterie.core.cohort import Cohort
from coterie.core.compiled import Refusal
from coterie.core.devices import seed
from coterie.core.optimiser import Optimiser, Updates
from coterie.core.rng import key64
from coterie.core.side_by_side import Extra
from coterie.core.states import Stack, State, clone, row

MAIN = "batches"
"""The purpose of the training that a method is about; its loss is what a run is watched by."""


def local_sgd(
    c: Cohort,
    start: Stack,
    opt: Optimiser,
    *,
    prox: Stack | None = None,
    mu: float = 0.0,
    correction: Stack | None = None,
    only: Collection[str] | None = None,
    purpose: str = MAIN,
) -> Stack:
    """Train every client of the cohort from its row of `start` on its own training part.

    Each step uses the gradient g + correction + mu (w - prox), then weight decay, momentum and the learning rate as
    torch.optim.SGD or Adam do. `prox` and `correction` have one row per client and entries for the parameters. With
    `only`, the parameters of these names are trained and the others stay. Two trainings of a client in one round
    draw different batches and layers if their `purpose` differs.

    The mean loss over the samples that each client saw goes into `c.losses`, unless the purpose is another than `MAIN`.
    """
    compiled = c.task.compiled
    if not isinstance(compiled, Refusal) and all(compiled.takes(client.train.extra) for client in c.data):
        trained, losses = compiled.train(
            start,
            [client.train for client in c.data],
            lambda index: sample_order(c, index, opt.epochs, purpose),
            lambda index: torch.Generator().manual_seed(_layers_key(c, index, purpose)),
            opt,
            opt.rate(c.round),
            mu=mu,
            prox=prox,
            correction=correction,
            only=only,
        )
    else:
        trained, losses = _by_torch(c, start, opt, Extra(prox, mu, correction), only, purpose)
    if purpose == MAIN:
        c.losses.update({c.ids[index]: loss for index, loss in losses.items()})
    return trained


def _by_torch(
    c: Cohort, start: Stack, opt: Optimiser, extra: Extra, only: Collection[str] | None, purpose: str
) -> tuple[Stack, dict[int, float]]:
    """Client after client, or on an accelerator all at once where that is faster."""
    if side_by_side.takes(c, opt, only):

        def order(some: Cohort, index: int, epochs: int) -> Tensor:
            return sample_order(some, index, epochs, purpose)

        def plain(some: Cohort, short: Optimiser) -> object:
            return _one_by_one(some, start, short, Extra(), None, purpose)

        if side_by_side.pays(c, start, opt, plain, order):
            return side_by_side.trained(c, start, opt, extra, order)
    return _one_by_one(c, start, opt, extra, only, purpose)


def _one_by_one(
    c: Cohort, start: Stack, opt: Optimiser, extra: Extra, only: Collection[str] | None, purpose: str
) -> tuple[Stack, dict[int, float]]:
    trained, losses = clone(start), {}
    for index in range(len(c)):
        loss = _torch_sgd(c, index, row(trained, index), opt, extra.of(index), only, purpose)
        if loss is not None:
            losses[index] = loss
    return trained, losses


def steps(c: Cohort, opt: Optimiser) -> Tensor:
    """How many updates `local_sgd` makes on each client, [C]."""
    smallest = _smallest_batch(c.task.module, opt)
    counts = []
    for client in c.data:
        samples = len(client.train)
        last = samples and (samples % opt.batch_of(samples) or opt.batch_of(samples))
        counts.append(opt.steps(samples) - opt.epochs * (last < smallest) if samples else 0)
    return torch.tensor(counts, dtype=torch.float64)


def sample_order(c: Cohort, index: int, epochs: int, purpose: str) -> Tensor:
    """The order in which a client sees its samples: a fresh permutation per epoch, [epochs * n]."""
    generator, samples = c.rng(index, purpose), len(c.data[index].train)
    return torch.from_numpy(np.concatenate([generator.permutation(samples) for _ in range(epochs)]))


def _layers_key(c: Cohort, index: int, purpose: str) -> int:
    """What the layers of a client's network (dropout) draw by."""
    other = () if purpose == MAIN else (purpose,)
    return key64(c.seed, "layers", c.round, c.ids[index], *other) >> 1


def _torch_sgd(
    c: Cohort,
    index: int,
    state: State,
    opt: Optimiser,
    extra: Extra,
    only: Collection[str] | None,
    purpose: str,
) -> float | None:
    """One client, plain autograd, in place; returns the mean loss over the samples seen, None where there were none."""
    task, samples = c.task, c.data[index].train
    if not len(samples) or not opt.epochs:
        return None
    module = task.loaded(state).train()
    chosen = module.named_parameters()
    named = {name: weight for name, weight in chosen if weight.requires_grad and (only is None or name in only)}
    trained = list(named.values())
    anchors, pulls = (_on(task.device, part, named) for part in (extra.prox, extra.correction))
    updates = Updates(trained, opt.kind, opt.rate(c.round), opt.momentum, opt.weight_decay)
    size = opt.batch_of(len(samples))
    smallest = _smallest_batch(module, opt)
    order = sample_order(c, index, opt.epochs, purpose).view(opt.epochs, -1)
    losses: list[Tensor] = []  # read at the end: on an accelerator every look would wait for it
    numbers: list[int] = []
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed: that also queues a call, with a stack trace, for every kind of GPU that is not there
        seed(task.device, _layers_key(c, index, purpose))
        for epoch in order:
            for batch in samples.take(epoch).on(task.device).batches(size):
                number = len(batch)
                if number < smallest:
                    continue
                inputs = task.inputs(batch.x)
                loss = task.loss_of(task.outputs(module, batch, inputs), task.targets(batch, inputs))
                losses.append(loss.detach())
                numbers.append(number)
                if not trained:
                    continue  # a part without weights has statistics, which the forward pass has renewed
                gradients = user_code.gradients(loss, trained, inputs)
                updates.step(_corrected(gradients, trained, pulls, anchors, extra.mu))
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            state[name].copy_(tensor)
    values = torch.stack(losses).tolist() if losses else []
    return sum(n * value for n, value in zip(numbers, values, strict=True)) / sum(numbers) if numbers else None


def _on(device: torch.device, state: State | None, names: Collection[str]) -> list[Tensor] | None:
    return None if state is None else [state[name].to(device) for name in names]


def _corrected(
    gradients: Sequence[Tensor | None],
    weights: Sequence[Tensor],
    pulls: Sequence[Tensor] | None,
    anchors: Sequence[Tensor] | None,
    mu: float,
) -> list[Tensor | None]:
    """Gradients with SCAFFOLD's correction and the pull mu (w - anchor) of a proximal term added."""
    found = list(gradients)
    for index, gradient in enumerate(found):
        if gradient is not None and pulls is not None:
            gradient = gradient + pulls[index]
        if gradient is not None and anchors is not None:
            gradient = gradient.add(weights[index].detach() - anchors[index], alpha=mu)
        found[index] = gradient
    return found


def _smallest_batch(module: nn.Module, opt: Optimiser) -> int:
    """The fewest samples that make a step.

    BatchNorm has no statistics of a single sample, so a batch of one is left out, as `drop_last` does in the
    references: the sample that is over at the end of an epoch, or all of a client that has just one. Who sets batch = 1
    wants batches of one.
    """
    normalises = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())
    return 2 if normalises and opt.batch != 1 else 1
