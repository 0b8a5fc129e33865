"""FedCG: domains found in the data, each with residual layers of its own, joined by a graph (Caldarola et al., 2021).

The defaults (preset "robust") are ours, inspired by FedCG: residuals for each domain, but no graph, no W, no teacher.
The preset "paper" is the method as it was written, but for a W that mixes no filters (the paper's does not fit in
memory); docs/results/fedcg.md says what was chosen where its words are open. The paper's symbols: theta_a what all
domains share and theta_s^d = V the residuals of domain d (`state.model`), lambda their weight, A and W the graph's,
g_phi the teacher and g_varphi the student (`finders.TeacherFinder`), T `teacher_every`. What is ours is in `features`,
`domains`, `classes`, `class_finder`, `growing`, `asked`, `weight`, `equipartition`; of the settings, `FedCGSettings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from torch import nn

from coterie.core.cohort import Cohort
from coterie.core.federation import Federation, Nothing, Replies, on_client
from coterie.core.jobs import changed_task
from coterie.core.panels import Panel
from coterie.core.samples import ClientId
from coterie.core.states import Stack, State, spread, stack
from coterie.core.task import Task
from coterie.methods.base import A, Log, Models, Trained
from coterie.methods.clustered import Choice
from coterie.methods.counted import OPEN
from coterie.methods.fedcg.alone import RoutedNet
from coterie.methods.fedcg.asked import begun, least_loss_domain
from coterie.methods.fedcg.averaging import averaged, samples_by_domain
from coterie.methods.fedcg.class_finder import ClassFinder, class_sums, marks
from coterie.methods.fedcg.equipartition import weighed
from coterie.methods.fedcg.features import FeatureFinder, feature_sums
from coterie.methods.fedcg.finders import Finder, MetadataFinder, ModelFinder, OracleFinder, TeacherFinder
from coterie.methods.fedcg.growing import during, grown
from coterie.methods.fedcg.messages import Assigned, ClassSums, Domains, Judged, MarkedReport, Report, Sent, Sums, Weigh
from coterie.methods.fedcg.network import DomainNet
from coterie.methods.fedcg.panels import domain_panels, lengthened, measures
from coterie.methods.fedcg.settings import FedCGSettings
from coterie.methods.fedcg.use import trained_alone, trained_on, used
from coterie.methods.fedcg.weight import judged, settled
from coterie.methods.fedcg.wrapping import Wrapping, domain_net, plain
from coterie.methods.served import Use

_COMMON = ("model", "teacher", "student")
FINDERS: dict[str, type[Finder]] = {
    **{"features": FeatureFinder, "classifier": TeacherFinder, "models": ModelFinder},
    **{"oracle": OracleFinder, "metadata": MetadataFinder},
}
"""What the setting `find` names."""


@dataclass(frozen=True)
class FedCG(FedCGSettings):
    """z = f_a(x) + lambda f_d(x), the residuals f_d of the domains joined by V <- sigma(A V W) (equations 4 and 5)."""

    name: ClassVar[str] = "fedcg"
    title: ClassVar[str] = "FedCG"
    paper: ClassVar[str] = "Caldarola et al. 2021, Cluster-driven graph federated learning over multiple domains"
    summary: ClassVar[str] = "one network with residual layers for every domain that is found in the data"
    use_when: ClassVar[str] = "data come from several domains, also within one client; labels may be swapped"
    avoid_when: ClassVar[str] = "labels are strongly skewed (alpha = 0.5: 4 points behind)"
    state_type: ClassVar[type[Domains]] = Domains

    def task(self, task: Task) -> Task:
        """The same task with domain layers in its network, once their number is known."""
        if self.domains == OPEN:
            return task
        task = plain(task) if isinstance(task.model, Wrapping) else task
        return task.with_model(Wrapping(self.network, task.model))

    @property
    def finder(self) -> Finder:
        """What finds the domains."""
        by_class = self.find == "features" and self.means == "classes"
        return ClassFinder(self) if by_class else FINDERS[self.find](self)

    def init(self, fed: Federation) -> Domains:
        """The network, and domains to begin with."""
        return self.finder.begin(self.blank(fed.task.init(fed.seed)), fed)

    def begun(self, fed: Federation, models: Stack, cluster: Mapping[ClientId, int]) -> Domains:
        """Ours: domains are the groups that were found, unless the inputs tell the same ones apart."""
        return begun(self, fed, models, cluster)

    def admit(self, state: Domains, fed: Federation, new: Sequence[ClientId]) -> Domains:
        """Only k-means on models must ask newcomers: they train once and go to the nearest centre."""
        with during(self, state, fed) as now:
            return now.finder.admit(state, fed, new)

    def task_in(self, state: Domains, task: Task) -> Task:
        """Ours: with as many domains as have been found by now."""
        now = grown(self, state)
        return task if now is self else changed_task(now, task)

    @on_client("features")
    def describe(self, c: Cohort, sent: Nothing) -> Sums:
        """On the client: sums of features and of their products (ours)."""
        return feature_sums(c, self.features)

    @on_client("features", "labels")
    def describe_classes(self, c: Cohort, sent: Nothing) -> ClassSums:
        """On the client: the same class by class, with the samples of each class (ours)."""
        return class_sums(c, self.features)

    @on_client("scores")
    def choose(self, c: Cohort, sent: Models) -> Choice:
        """On the client: the domain with the least loss on its training part (ours)."""
        return Choice(least_loss_domain(c, sent.models))

    @on_client("features")
    def weigh(self, c: Cohort, sent: Weigh) -> Assigned:
        """On the client: how much of its samples a teacher puts into each domain, and its outputs in sum (ours)."""
        finder = TeacherFinder(self)
        said = [finder.log_probabilities(c.task, sent.teacher, client.train) for client in c.data]
        return weighed(said, sent, c.size)

    @on_client("models")
    def train_alone(self, c: Cohort, sent: Models) -> Trained:
        """On the client: epochs of its own with the plain network, from the common start."""
        return trained_alone(self, c, sent)

    def step(self, state: Domains, fed: Federation) -> tuple[Domains, Log]:
        """Train network and student on the sampled clients, average, then measure how close domains are."""
        ids = fed.sample(self.fraction)
        with during(self, state, fed) as now:
            state = now.finder.search(state, fed)
        with during(self, state, fed) as now:  # domains may have been found late
            return now.trained(state, fed, ids)

    def trained(self, state: Domains, fed: Federation, ids: Sequence[ClientId]) -> tuple[Domains, Log]:
        """The state after these clients have trained."""
        train = self.train if state.looks is None else self.train_marked
        replies: Replies[Report] = fed.ask(train, ids, each=self._message(state, fed, ids), common=_COMMON)
        state, replies = self.finder.of_now(state, self.usable(fed, replies, spread(state.model, len(replies.ids))))
        if replies.value is None:
            return state, {}
        net = domain_net(fed.task)
        counts = samples_by_domain(replies.value).sum(0)
        model = averaged(self, replies.value, state.model, net.residuals)
        model, weight = settled(self, state, fed, replies.ids, model, counts)
        log = measures(model, counts, replies.value.agreed, net.scales)
        after = replace(self.finder.renewed(state, replies.value, fed.round), model=model, weight=weight)
        return replace(after, samples=counts.tolist(), history=lengthened(state.history, log)), log

    def _message(self, state: Domains, fed: Federation, ids: Sequence[ClientId]) -> Sent:
        finder = self.finder
        domain = finder.domain_of(state, fed, ids)
        return Sent(state.model, finder.teacher(state), state.student, state.pooled, domain)

    @on_client("models")
    def train(self, c: Cohort, sent: Sent) -> Report:
        """On the client: every sample trains the residuals of its domain; then the student learns from the teacher."""
        return trained_on(self, c, sent)

    @on_client("models")
    def train_marked(self, c: Cohort, sent: Sent) -> MarkedReport:
        """On the client: the same, and a mark of its data (ours)."""
        return MarkedReport(**vars(self.train(c, sent)), mark=marks(c))

    @on_client("scores")
    def tell_losses(self, c: Cohort, sent: Nothing) -> Judged:
        """On the client: what its losses were before it trained, by weight of the residuals (ours)."""
        return judged(c)

    def ask_about_models(
        self, state: Domains, fed: Federation, ids: Sequence[ClientId], function: Callable[[Cohort, Any], A]
    ) -> Replies[A]:
        """Clients get the network and what finds the domains of their samples."""
        with during(self, state, fed) as now:
            message, asked = now._message(state, fed, ids), getattr(now, function.__name__)
            return fed.ask(asked, ids, each=message, common=_COMMON, purpose="evaluation")

    def uses(self, c: Cohort, sent: Sent) -> Use:
        """On the client: every test sample by its own domains, or all by what they look like together.

        Their domains are found without their labels. Samples that are trained on get the domains that training gives.
        """
        return used(self, c, sent)

    def model_for(self, state: Domains, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """One network for everyone; which residuals it uses is decided by the samples."""
        return stack([state.model]), [0] * len(ids)

    def models(self, state: Domains) -> Mapping[str, State]:
        """The network and, where there is one, the student."""
        return {"network": state.model, **({"student": state.student} if state.student else {})}

    def ready(self, network: nn.Module, state: Domains, group: int | None, seed: int) -> nn.Module:
        """The network that routes its inputs itself."""
        assert isinstance(network, DomainNet)
        finder = grown(self, state).finder
        return RoutedNet(network, partial(finder.routed, state, -1 if group is None else group, seed), self.soft)

    def panels(self, state: Domains, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        """Collapse, the weight of the residuals and the adjacency."""
        return domain_panels(state.history, state.samples, state.model.get("adjacency"))
