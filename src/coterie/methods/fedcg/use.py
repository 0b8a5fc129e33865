"""How FedCG's network is trained and used on a client: by the domains of its samples."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.samples import Samples
from coterie.core.states import spread
from coterie.core.training import local_sgd
from coterie.methods.base import Models, Trained
from coterie.methods.fedcg.messages import Report, Sent
from coterie.methods.fedcg.weight import judge
from coterie.methods.fedcg.wrapping import plain
from coterie.methods.served import Use

if TYPE_CHECKING:
    from coterie.methods.fedcg.method import FedCG


def trained_on(method: FedCG, c: Cohort, sent: Sent) -> Report:
    """The network after local training, the student, and the samples by domain."""
    finder = method.finder
    seen = [finder.seen(c, sent, index, client.train) for index, client in enumerate(c.data)]
    labels = [finder.taught(c, sent, client.train, own) for client, own in zip(c.data, seen, strict=True)]
    judge(method, c, sent, labels)
    model = local_sgd(c.with_extra(labels), spread(sent.model, len(c)), method.opt)
    counts = [torch.bincount(own, minlength=method.domains) for own in labels]
    agreed = [(own.argmax(1) == label).sum() for own, label in zip(seen, labels, strict=True)]
    return Report(model, finder.distilled(c, sent, labels), torch.stack(counts), torch.stack(agreed), c.size)


def trained_alone(method: FedCG, c: Cohort, sent: Models) -> Trained:
    """The plain network after epochs of each client's own.

    Without momentum and with the rate of the first round, so that what the models differ by is the data.
    """
    opt = replace(method.opt, epochs=method.alone_epochs, momentum=0.0, lr_decay=1.0)
    return Trained(local_sgd(replace(c, task=plain(c.task)), spread(sent.models, len(c)), opt), c.size)


def used(method: FedCG, c: Cohort, sent: Sent) -> Use:
    """The network with the domains of every client's samples beside them."""
    finder = method.finder

    def routed(index: int, samples: Samples) -> Tensor:
        return finder.together(sent, finder.seen(c, sent, index, samples))

    def side(index: int, samples: Samples) -> Tensor:
        return routed(index, samples) if method.soft else routed(index, samples).argmax(1)

    def taught(index: int, samples: Samples) -> Tensor:
        return finder.taught(c, sent, samples, finder.seen(c, sent, index, samples))

    weights = [routed(index, client.test) for index, client in enumerate(c.data)]
    main = torch.stack([own.mean(0).nan_to_num().argmax() for own in weights])
    sides = weights if method.soft else [own.argmax(1) for own in weights]
    cohort = c.with_extra(sides, "test").with_extra_lazily(taught, "train").with_extra_lazily(side, "valid")
    return Use(cohort, spread(sent.model, len(c)), main)
