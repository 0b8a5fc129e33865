"""How FedCG tells domains apart in the paper: a class for each value of the setting `find`, but ours (`features`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.aggregate import combined, combined_one
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.evaluation import probabilities
from coterie.core.federation import Federation, Replies
from coterie.core.optimiser import Optimiser
from coterie.core.samples import ClientData, ClientId, Normalise, Samples
from coterie.core.states import Stack, State, distance, flat, spread, stack
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.methods.base import Models
from coterie.methods.fedcg.classifier import domain_classifier, with_offsets
from coterie.methods.fedcg.domains import kmeans, mix, pool
from coterie.methods.fedcg.equipartition import balanced_offsets
from coterie.methods.fedcg.messages import Domains, Report, Sent
from coterie.methods.fedcg.wrapping import plain

if TYPE_CHECKING:
    from coterie.methods.fedcg.method import FedCG


class Finder(ABC):
    """What decides the domain of every sample, in training and at test time. It keeps nothing: all is in the state."""

    def __init__(self, method: FedCG) -> None:
        self.method = method

    def begin(self, state: Domains, fed: Federation) -> Domains:
        """The state before the first round, with domains to begin with."""
        return self.search(state, fed)

    def search(self, state: Domains, fed: Federation) -> Domains:
        """With domains, if there are none yet: where no client answered, the next round asks again."""
        return state

    def admit(self, state: Domains, fed: Federation, new: Sequence[ClientId]) -> Domains:
        """With clients that have just joined."""
        return state

    def domain_of(self, state: Domains, fed: Federation, ids: Sequence[ClientId]) -> Tensor:
        """The domain of each client where the server decides it; -1 where it does not."""
        return torch.tensor([state.cluster.get(client, -1) for client in ids])

    def teacher(self, state: Domains) -> State:
        """The teacher that clients are sent."""
        return state.teacher

    @abstractmethod
    def seen(self, c: Cohort, sent: Sent, index: int, samples: Samples) -> Tensor:
        """How probable each domain is for each sample of a client, as its student (or what is known) says: [n, D]."""

    @abstractmethod
    def told(self, state: Domains, domain: int, seed: int, x: Tensor) -> Tensor:
        """The same of inputs of the network, outside a federation; `domain` is that of the client, -1 if unknown."""

    def routed(self, state: Domains, domain: int, seed: int, x: Tensor) -> Tensor:
        """The same, given that all inputs are of one client."""
        return self.together(state, self.told(state, domain, seed, x))

    def together(self, sent: Sent | Domains, seen: Tensor) -> Tensor:
        """The same, given that all samples are of one client."""
        return pool(seen) if sent.pooled else seen if self.method.routing == "image" else mix(seen)

    def taught(self, c: Cohort, sent: Sent, samples: Samples, seen: Tensor) -> Tensor:
        """The domain that each training sample is given, [n]."""
        return self.together(sent, seen).argmax(1)

    def distilled(self, c: Cohort, sent: Sent, labels: Sequence[Tensor]) -> Stack:
        """Each client's student after it has learnt the domains of the training samples, where it learns."""
        return {}

    def of_now(self, state: Domains, replies: Replies[Report]) -> tuple[Domains, Replies[Report]]:
        """The replies of clients whose domain is still the one that they were sent."""
        return state, replies

    def renewed(self, state: Domains, replies: Report, round: int) -> Domains:
        """With the clients' students taken in."""
        return state


class TeacherFinder(Finder):
    """The paper's teacher and student (section 3.1): two small networks that see single images."""

    def begin(self, state: Domains, fed: Federation) -> Domains:
        """Both begin at random."""
        classifier = self._classifier(fed.task)
        return replace(state, teacher=classifier.init(fed.seed, 1), student=classifier.init(fed.seed, 2))

    def search(self, state: Domains, fed: Federation) -> Domains:
        """Ours (`balance`): offsets with which a new teacher uses all domains alike over the samples of all clients."""
        if not self.method.balance or len(state.offsets):
            return state
        offsets = balanced_offsets(self.method, state.teacher, fed)
        return state if offsets is None else replace(state, offsets=offsets)

    def teacher(self, state: Domains) -> State:
        """The teacher, with its offsets where it has some."""
        return with_offsets(state.teacher, state.offsets) if len(state.offsets) else state.teacher

    def log_probabilities(self, task: Task, teacher: State, samples: Samples) -> Tensor:
        """The logarithms of what a classifier says, [n, D]: its outputs, but for a number for each sample."""
        return self._said(task, teacher, samples).double().clamp_min(1e-12).log()

    def seen(self, c: Cohort, sent: Sent, index: int, samples: Samples) -> Tensor:
        """The student's probabilities."""
        return self._said(c.task, sent.student, samples)

    def told(self, state: Domains, domain: int, seed: int, x: Tensor) -> Tensor:
        """The student's probabilities."""
        network = domain_classifier(tuple(x.shape[1:]), self.method.domains).to(x.dtype)
        network.load_state_dict(state.student)
        return F.softmax(network(x), dim=-1)

    def taught(self, c: Cohort, sent: Sent, samples: Samples, seen: Tensor) -> Tensor:
        """The teacher's most probable domain."""
        return self._said(c.task, sent.teacher, samples).argmax(1)

    def distilled(self, c: Cohort, sent: Sent, labels: Sequence[Tensor]) -> Stack:
        """The student after learning the teacher's labels (equation 3)."""
        method = self.method
        lessons = [Samples(client.train.x, label) for client, label in zip(c.data, labels, strict=True)]
        pupils = replace(c, task=self._classifier(c.task), data=tuple(ClientData(own, own) for own in lessons))
        opt = Optimiser(epochs=1, batch=method.batch, lr=method.classifier_lr)
        return local_sgd(pupils, spread(sent.student, len(c)), opt, purpose="student")

    def renewed(self, state: Domains, replies: Report, round: int) -> Domains:
        """FedAvg of the students; every T rounds the result is the new teacher."""
        student = combined_one(self.method.aggregate, replies.student, replies.size, state.student)
        if (round + 1) % self.method.teacher_every:
            return replace(state, student=student)
        return replace(state, student=student, teacher=student, offsets=torch.zeros(0))

    def _said(self, task: Task, state: State, samples: Samples) -> Tensor:
        classifier = self._classifier(task)
        return probabilities(classifier, stack([state]), classifier.inputs(samples.x))[0]

    def _classifier(self, task: Task) -> Task:
        return _classifier(task.shape, self.method.domains, task.normalise, task.dtype)


class _KnownFinder(Finder):
    """Domains that are known as numbers, by sample or by client; -1 is unknown."""

    @abstractmethod
    def known(self, sent: Sent, index: int, samples: Samples) -> Tensor:
        """The domain of each sample, [n]."""

    def seen(self, c: Cohort, sent: Sent, index: int, samples: Samples) -> Tensor:
        """All weight on the known domain, or the same on all."""
        return self._weights(self.known(sent, index, samples))

    def told(self, state: Domains, domain: int, seed: int, x: Tensor) -> Tensor:
        """Likewise, with that of the client."""
        return self._weights(torch.full_like(x.flatten(1)[:, 0], domain, dtype=torch.int64))

    def _weights(self, known: Tensor) -> Tensor:
        domains = self.method.domains
        if bool((known >= domains).any()):
            highest = int(known.max())
            raise CoterieError(f"fedcg: samples have domain {highest}, counted from 0; set domains to all there are.")
        told = F.one_hot(known.clamp_min(0), domains).to(torch.float32)
        return torch.where(known[:, None] < 0, 1 / domains, told)


class ModelFinder(_KnownFinder):
    """k-means on the models of clients that trained alone (the paper's baseline in Table 4)."""

    def search(self, state: Domains, fed: Federation) -> Domains:
        """Every client trains alone once."""
        if len(state.centres):
            return state
        replies = fed.ask(self.method.train_alone, sorted(fed.ids), same=Models(plain(fed.task).init(fed.seed)))
        begun = plain(fed.task).init(fed.seed)
        replies = self.method.usable(fed, replies, spread(begun, len(replies.ids)))
        if replies.value is None:
            return state
        labels = kmeans(flat(replies.value.model), self.method.domains, domain_seed(fed))
        first = spread(begun, int(labels.max()) + 1)
        equal = torch.ones(len(labels), dtype=torch.float64)
        each = combined(self.method.aggregate, replies.value.model, equal, labels, first)
        cluster = dict(zip(replies.ids, labels.tolist(), strict=True))
        return replace(state, cluster=cluster, centres=flat(each))

    def admit(self, state: Domains, fed: Federation, new: Sequence[ClientId]) -> Domains:
        """Newcomers train alone, too, and go to the nearest centre."""
        if not len(state.centres):
            return state
        replies = fed.ask(self.method.train_alone, new, same=Models(plain(fed.task).init(fed.seed)))
        if replies.value is None:
            return state
        nearest = distance({"": flat(replies.value.model)}, {"": state.centres}).argmin(1)
        return replace(state, cluster={**state.cluster, **dict(zip(replies.ids, nearest.tolist(), strict=True))})

    def known(self, sent: Sent, index: int, samples: Samples) -> Tensor:
        """That of the client."""
        return sent.domain[index].expand(len(samples))


class OracleFinder(_KnownFinder):
    """The true groups of the clients."""

    def domain_of(self, state: Domains, fed: Federation, ids: Sequence[ClientId]) -> Tensor:
        """The truth."""
        return fed.truth(ids)

    def known(self, sent: Sent, index: int, samples: Samples) -> Tensor:
        """That of the client."""
        return sent.domain[index].expand(len(samples))


class MetadataFinder(_KnownFinder):
    """The numbers beside the samples (Table 3 of the paper)."""

    def told(self, state: Domains, domain: int, seed: int, x: Tensor) -> Tensor:
        """It is not known of new samples."""
        raise CoterieError('fedcg with find = "metadata" needs the domain of every sample; new ones come without.')

    def known(self, sent: Sent, index: int, samples: Samples) -> Tensor:
        """What is beside each sample."""
        if samples.extra is None:
            raise CoterieError('fedcg: these samples have no metadata beside them; set find to "features".')
        return samples.extra


@lru_cache(maxsize=8)
def _classifier(shape: tuple[int, ...], domains: int, normalise: Normalise, dtype: torch.dtype) -> Task:
    """The task of telling domains apart; made once, because its scratch network is."""
    return Task(partial(domain_classifier, shape, domains), shape, domains, normalise, dtype=dtype)


def domain_seed(fed: Federation) -> int:
    """The seed of k-means."""
    return int(fed.rng("domains").integers(1 << 31))
