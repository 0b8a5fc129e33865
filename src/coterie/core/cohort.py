"""Clients at work: the only training loop and the only evaluation loop of the package.

Every client function is written over a cohort, a leading axis C of clients. On a device C is 1; in the simulator it is
as many clients as a worker takes at once. How a client is computed (compiled kernel or torch) is decided here, behind
one signature, and never changes what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie import kernel
from coterie.core import user_code
from coterie.core.optimiser import DEFAULT_RATES, OptimiserName, Updates
from coterie.core.rng import Key, key64, rng
from coterie.core.samples import ClientData, ClientId, Samples
from coterie.core.states import (
    Stack,
    State,
    clone,
    count,
    row,
    stack,
)
from coterie.core.task import Task
from coterie.kernel import bridge as fast

Part = Literal["train", "valid", "test"]
Kept = Tensor | State
Memory = dict[str, Kept]
_EVALUATION_BATCH = 512


@dataclass(frozen=True)
class Optimiser:
    """Local training of one client in one round; always a fresh optimiser (no state is carried between rounds)."""

    epochs: int = 1
    batch: int = 32
    lr: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_decay: float = 1.0
    kind: OptimiserName = "sgd"

    def rate(self, round: int) -> float:
        """The learning rate of a round; it begins with the optimiser's own default where none is set."""
        return (DEFAULT_RATES[self.kind] if self.lr is None else self.lr) * self.lr_decay**round

    def steps(self, samples: int) -> int:
        """How many updates a client with that many samples makes."""
        return self.epochs * -(-samples // self.batch_of(samples))

    def batch_of(self, samples: int) -> int:
        """The batch size; 0 stands for the whole training set."""
        return self.batch or samples


@dataclass(frozen=True)
class Cohort:
    """Some clients, with all they may use: their data, the round, their own memory and keyed randomness."""

    ids: tuple[ClientId, ...]
    task: Task
    data: tuple[ClientData, ...]
    round: int = 0
    seed: int = 0
    memory: tuple[Memory, ...] = ()
    kept: dict[str, Tensor | Stack] = field(default_factory=dict)
    secret: str | None = None
    """What only this device knows; None in the simulator, whose clients' secrets follow from the seed."""
    least_flip: float = 0.0
    """The least flip probability that this device agrees to."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def size(self) -> Tensor:
        """Number of training samples of each client, [C]."""
        return torch.tensor([len(client.train) for client in self.data], dtype=torch.float64)

    def part(self, part: Part) -> list[Samples]:
        """One part of every client's data; where there is no validation part, the training part."""
        if part == "valid":
            return [client.valid if client.valid is not None else client.train for client in self.data]
        return [client.train if part == "train" else client.test for client in self.data]

    def beside(self, side: Sequence[Tensor], part: Literal["train", "test"] = "train") -> Cohort:
        """The same clients with something beside every sample of a part, one tensor a client."""

        def extended(client: ClientData, own: Tensor) -> ClientData:
            parts: dict[str, Any] = {name: partial(getattr, client, name) for name in ("train", "test", "valid")}
            return ClientData(**{**parts, part: replace(getattr(client, part), side=own)})

        return replace(self, data=tuple(extended(*pair) for pair in zip(self.data, side, strict=True)))

    def rng(self, index: int, purpose: str, *key: Key) -> np.random.Generator:
        """The generator of one client for one purpose in this round."""
        return rng(self.seed, purpose, self.round, self.ids[index], *key)

    def private_rng(self, index: int, purpose: str) -> np.random.Generator:
        """The generator of one client for one purpose, in every round and, on a real device, in every run the same.

        On a device nobody else can draw it: it is keyed by the device's secret and not by the run's seed. In the
        simulator it is keyed by the seed, so that a run can be repeated; whoever knows the seed can draw it too.
        """
        if self.secret is None:
            return rng(self.seed, purpose, self.ids[index], "")
        return rng(0, purpose, self.ids[index], self.secret)

    def recall(self, name: str, default: Stack) -> Stack:
        """What each client kept under that name in an earlier round, or its row of `default`."""
        rows: list[State] = []
        for index in range(len(self)):
            kept = self.memory[index].get(name) if self.memory else None
            rows.append(kept if isinstance(kept, dict) else row(default, index))
        return stack(rows)

    def recall_tensor(self, name: str, default: Tensor) -> Tensor:
        """The same for a single tensor per client, [C, ...]."""
        kept = [self.memory[index].get(name) if self.memory else None for index in range(len(self))]
        return torch.stack([k if isinstance(k, Tensor) else default[index] for index, k in enumerate(kept)])

    def keep(self, name: str, value: Tensor | Stack) -> None:
        """Have every client keep its row until it is asked again."""
        self.kept[name] = value


@dataclass(frozen=True)
class Scores:
    """How models did on clients' data. Rows are models where several were scored on the same client."""

    loss: Tensor
    correct: Tensor
    count: Tensor


def local_sgd(
    c: Cohort,
    start: Stack,
    opt: Optimiser,
    *,
    prox: Stack | None = None,
    mu: float = 0.0,
    correction: Stack | None = None,
    purpose: str = "batches",
) -> Stack:
    """Train every client of the cohort from its row of `start` on its own training part.

    Each step uses the gradient g + correction + mu (w - prox), then weight decay, momentum and the learning rate as
    torch.optim.SGD or Adam do. `prox` and `correction` have one row per client and entries for the parameters.
    """
    net = c.task.net
    if isinstance(net, kernel.Net) and all(fast.takes(net, client.train) for client in c.data):
        return _kernel_sgd(c, net, start, opt, prox, mu, correction, purpose)
    trained = clone(start)
    for index in range(len(c)):
        _torch_sgd(
            c,
            index,
            row(trained, index),
            opt,
            row(prox, index) if prox is not None and mu else None,
            mu,
            row(correction, index) if correction is not None else None,
            purpose,
        )
    return trained


def steps(c: Cohort, opt: Optimiser) -> Tensor:
    """How many updates `local_sgd` makes on each client, [C]."""
    smallest = _smallest_batch(c.task.module, opt)
    counts = []
    for client in c.data:
        samples = len(client.train)
        last = samples and (samples % opt.batch_of(samples) or opt.batch_of(samples))
        counts.append(opt.steps(samples) - opt.epochs * (last < smallest) if samples else 0)
    return torch.tensor(counts, dtype=torch.float64)


def _order(c: Cohort, index: int, epochs: int, purpose: str) -> Tensor:
    """The order in which a client sees its samples: a fresh permutation per epoch, [epochs * n]."""
    generator, samples = c.rng(index, purpose), len(c.data[index].train)
    return torch.from_numpy(np.concatenate([generator.permutation(samples) for _ in range(epochs)]))


def _kernel_sgd(
    c: Cohort,
    net: kernel.Net,
    start: Stack,
    opt: Optimiser,
    prox: Stack | None,
    mu: float,
    correction: Stack | None,
    purpose: str,
) -> Stack:
    """Every client in one call of the kernel each, in place on a fresh matrix of models."""
    task, weights = c.task, fast.vectors(net, start)
    anchors = fast.vectors(net, prox) if prox is not None and mu else None
    pulls = fast.vectors(net, correction) if correction is not None else None
    for index, client in enumerate(c.data):
        if not len(client.train) or not opt.epochs:
            continue
        batch = opt.batch_of(len(client.train))
        order, route = _order(c, index, opt.epochs, purpose), fast.routing(net, row(start, index), client.train)
        net.train(
            weights[index],
            fast.inputs(task, client.train),
            fast.target(task, client.train),
            order if route is None else fast.grouped(order, opt.epochs, batch, route.domains),
            epochs=opt.epochs,
            batch=batch,
            optimiser=opt.kind,
            lr=opt.rate(c.round),
            momentum=opt.momentum,
            weight_decay=opt.weight_decay,
            mu=mu if anchors is not None else 0.0,
            anchor=anchors[index] if anchors is not None else None,
            correction=pulls[index] if pulls is not None else None,
            **fast.scaling(task.normalise),
            route=route,
        )
    return fast.models_of(net, weights, start)


def _torch_sgd(
    c: Cohort,
    index: int,
    state: State,
    opt: Optimiser,
    prox: State | None,
    mu: float,
    correction: State | None,
    purpose: str,
) -> None:
    """One client, plain autograd, in place."""
    task, samples = c.task, c.data[index].train
    if not len(samples) or not opt.epochs:
        return
    module = _loaded(task, state).train()
    named = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    trained = list(named.values())
    anchors = [prox[name] for name in named] if prox is not None else None
    pulls = [correction[name] for name in named] if correction is not None else None
    updates = Updates(trained, opt.kind, opt.rate(c.round), opt.momentum, opt.weight_decay)
    size = opt.batch_of(len(samples))
    smallest = _smallest_batch(module, opt)
    order = _order(c, index, opt.epochs, purpose).view(opt.epochs, -1)
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed: that also queues a call, with a stack trace, for every kind of GPU that is not there
        torch.default_generator.manual_seed(key64(c.seed, "layers", c.round, c.ids[index]) >> 1)
        for epoch in order:
            for batch in samples.take(epoch).batches(size):
                if len(batch) < smallest:
                    continue
                inputs = task.inputs(batch.x)
                loss = task.loss_of(task.outputs(module, batch, inputs), task.targets(batch, inputs))
                gradients = user_code.gradients(loss, trained, inputs)
                updates.step(_corrected(gradients, trained, pulls, anchors, mu))
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            state[name].copy_(tensor)


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


def _loaded(task: Task, state: State) -> nn.Module:
    """The thread's scratch network with this state in it."""
    module = task.module
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            tensor.copy_(state[name])
    return module


def score(task: Task, models: Stack, samples: Samples) -> Scores:
    """Every model of the stack on one client's samples: mean loss [K], correct answers [K], number of samples."""
    rows, total = count(models), len(samples)
    number = torch.full((rows,), float(total), dtype=torch.float64)
    if not total:
        return Scores(torch.zeros(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64), number)
    net = task.net
    if isinstance(net, kernel.Net) and fast.takes(net, samples) and (rows == 1 or not net.domains):
        mean, share = net.evaluate(
            fast.vectors(net, models),
            fast.inputs(task, samples),
            fast.target(task, samples),
            **fast.scaling(task.normalise),
            route=fast.routing(net, row(models, 0), samples),
        )
        return Scores(mean, (share * total).round().nan_to_num(0.0), number)
    loss, correct = torch.zeros(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64)
    for index in range(rows):
        for output, target in _outputs(task, row(models, index), samples):
            loss[index] += float(task.loss_of(output, target)) * len(output)
            if task.loss == "cross_entropy" or not isinstance(task.loss, str):
                correct[index] += float((output.argmax(-1) == target).sum())
    return Scores(loss / total, correct, number)


def _outputs(task: Task, state: State, samples: Samples) -> list[tuple[Tensor, Tensor]]:
    module, results = _loaded(task, state).eval(), []
    with torch.inference_mode():
        for batch in samples.batches(_EVALUATION_BATCH):
            inputs = task.inputs(batch.x)
            results.append((task.outputs(module, batch, inputs), task.targets(batch, inputs)))
    return results


def evaluate(c: Cohort, models: Stack, part: Part = "test") -> Scores:
    """Each client's own row of `models` on its own data: every entry of the result is [C]."""
    each = [
        score(c.task, {name: t[index : index + 1] for name, t in models.items()}, samples)
        for index, samples in enumerate(c.part(part))
    ]
    return Scores(
        torch.cat([s.loss for s in each]), torch.cat([s.correct for s in each]), torch.cat([s.count for s in each])
    )


def losses(c: Cohort, models: Stack, part: Part = "train", *, batch: int = 0) -> Tensor:
    """The loss of every model on every client's data, [K, C]; with `batch`, on that many samples drawn this round."""

    def chosen(index: int, samples: Samples) -> Samples:
        if not batch or batch >= len(samples):
            return samples
        drawn = c.rng(index, "score").choice(len(samples), batch, replace=False)
        return samples.take(torch.from_numpy(drawn))

    return torch.stack([score(c.task, models, chosen(i, s)).loss for i, s in enumerate(c.part(part))], dim=1)


def probabilities(task: Task, models: Stack, inputs: Tensor) -> Tensor:
    """Class probabilities of every model for inputs already in the network's input space: [K, n, classes]."""
    if isinstance(task.net, kernel.Net) and not task.net.domains:
        return task.net.predict(fast.vectors(task.net, models), inputs.to(task.dtype).contiguous())
    results = []
    for index in range(count(models)):
        module = _loaded(task, row(models, index)).eval()
        with torch.inference_mode():
            parts = [
                F.softmax(task.answers(module, part), dim=-1) for part in inputs.to(task.dtype).split(_EVALUATION_BATCH)
            ]
        results.append(torch.cat(parts))
    return torch.stack(results)
