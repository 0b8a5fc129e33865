"""auto: groups are found while FedAvg trains (ours).

Every participant downloads one model and uploads one, as in FedAvg. All begin in one group.

1. **Looks.** In its first visit a client tells, as sketches, how its samples of each class pull on the model that all
   began with, from two halves of its data (`looks`). Label shares and rounds play no part in that.
2. **Proposals.** Partitions found from one half are judged by the other (`proposals`). Nothing is proposed by chance.
3. **Clear groups** explain nearly all that the halves of a client have in common: they are made at once, newcomers are
   put where they belong, and a client whose loss has risen is looked at again (`parts`).
4. **Judgement.** Other proposals are sent to the members, a second model once: each compares the mean of its fellows in
   the whole group with that of its fellows in its part, its own update left out of both and its own label prior taken
   out (`judgement`). The group is split only if its members gain. A client that no longer fits such a group, or
   that is new, is sent the other groups' models as well and goes where its loss is least; strangers found a group.
5. **Personal models.** Every fourth visit is a trial on halves. Each client uses its group's model as it is or
   fine-tuned, or one that it has trained alone, by what these did on the half not trained on (`personal`).
6. **Pace.** Two rounds by which most members of a group lose are taken back; it goes on at half the rate (`pace`).
7. **Renamings.** Groups that see the same and name it otherwise train one network, its answers renamed (`renamings`).
8. **In use**, where few members come to a round, is a mean of the group's models over the last rounds (`steady`).

Extra downloads are paid from an allowance (`visits`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from coterie.core.cohort import Cohort
from coterie.core.evaluation import evaluate
from coterie.core.federation import Federation, Replies, on_client
from coterie.core.panels import Panel
from coterie.core.samples import ClientId
from coterie.core.states import Stack, count, stack, take
from coterie.methods.auto import groups, pace, personal, renamings, steady, visits
from coterie.methods.auto.judgement import losses_of_all, losses_of_pair
from coterie.methods.auto.looks import appearances, pulls
from coterie.methods.auto.messages import GroupModels, Groups, Looked, Paced, Pair, Prepared, Tried, Visit, Weighed
from coterie.methods.auto.panels import group_panels
from coterie.methods.base import A, Log
from coterie.methods.clustered import Choice, KnowsMembers, chosen_of, cluster_sizes
from coterie.methods.served import Use, use


@dataclass(frozen=True)
class Auto(KnowsMembers[Groups]):
    """It has no settings of its own: what it does is decided by what the clients show."""

    name: ClassVar[str] = "auto"
    title: ClassVar[str] = "auto (ours)"
    paper: ClassVar[str] = "ours: how classes pull on the first model tells groups; unclear ones are judged by loss"
    summary: ClassVar[str] = "finds groups while it trains, at nearly FedAvg's bytes; nothing to set"
    use_when: ClassVar[str] = "nothing is known of the groups: skew, drift, few clients a round, newcomers"
    avoid_when: ClassVar[str] = "there is no server; clients mix groups (fedcg serves each sample)"
    state_type: ClassVar[type[Groups]] = Groups

    def init(self, fed: Federation) -> Groups:
        """All clients in one group."""
        models = stack([fed.task.init(fed.seed)])
        return Groups(models, models, {}, {}, {}, {}, {}, all_labels=not fed.task.tests_alike)

    def step(self, state: Groups, fed: Federation) -> tuple[Groups, Log]:
        """One round: every participant votes, chooses, looks, tries or trains; then the models, then the groups."""
        plan = visits.planned(state, fed.sample(self.fraction))
        shares = visits.shares_by_group(state, self._classes(fed))
        sent = Paced(state.models, state.pace)
        unwilling: list[ClientId] = []  # devices that do not tell their labels
        looked = self._visited(state, fed, self.look, plan.lookers, sent, unwilling)
        tried = self._visited(state, fed, self.try_out, plan.triers, sent)
        trained = self._visited(state, fed, self.train, [*plan.others, *unwilling], sent)
        voted = self._voted(state, fed, plan.voters)
        chose = self._chose(state, fed, plan.choosers, GroupModels(state.models, shares, sent.pace))
        new = state
        if looked:
            new, looked = groups.looked(state, looked, fed)
        came = [some for some in (looked, tried, trained, voted, chose) if some is not None]
        if not came:
            return state, {}
        extra = len(plan.voters) + (count(state.models) - 1) * len(plan.choosers)
        new = replace(groups.averaged(new, came, self.aggregate, fed), extra=state.extra + extra)
        new = groups.tried(new, tried) if tried else new
        new = groups.moved(new, state, chose, fed) if chose else new
        new = groups.decided(groups.voted(new, voted) if voted else new, fed)
        new = renamings.settled(state, groups.asked(new, fed), fed)
        sizes = cluster_sizes(torch.tensor(list(new.cluster.values())), count(new.models))
        moves = [client for client, group in new.cluster.items() if state.cluster.get(client, group) != group]
        new = pace.kept(steady.followed(state, new, came, moves), moves)
        return new, {"sizes": sizes, "moved": len(moves), "extra_downloads": new.extra}

    def _classes(self, fed: Federation) -> int:
        return fed.task.classes if fed.task.has_classes else 0

    def _visited(
        self, state: Groups, fed: Federation, ask: Callable[[Cohort, Any], Any], ids: Sequence[ClientId], message: Any,
        unwilling: list[ClientId] | None = None,
    ) -> visits.Came | None:  # fmt: skip
        """Clients that train the model of their group; one that is met for the first time is in group 0."""
        if not ids:
            return None
        replies = fed.ask(ask, ids, each=message, rows=[state.cluster.get(client, 0) for client in ids])
        if unwilling is not None:
            unwilling += [client for client, failure in replies.failed.items() if failure.kind == "withheld"]
        group = [state.cluster.get(client, 0) for client in replies.ids]
        return self._came(fed, replies, take(state.models, torch.tensor(group, dtype=torch.int64)), group)

    def _voted(self, state: Groups, fed: Federation, ids: Sequence[ClientId]) -> visits.Came | None:
        """Clients that compare two models of their fellows; they train that of the whole group."""
        if not ids:
            return None
        pairs = visits.pairs(state, fed, ids)
        replies = fed.ask(self.compare, ids, each=pairs)
        rows = torch.tensor([list(ids).index(client) for client in replies.ids], dtype=torch.int64)
        group = [state.cluster[client] for client in replies.ids]
        came = self._came(fed, replies, take(pairs.whole, rows), group)
        return None if came is None else visits.on_their_group(came, state.models)

    def _chose(self, state: Groups, fed: Federation, ids: Sequence[ClientId], sent: GroupModels) -> visits.Came | None:
        """Clients that are sent the models of all groups and train the one that fits them best."""
        if not ids:
            return None
        replies = fed.ask(self.choose, ids, same=sent)
        if replies.value is None:
            return None
        group = replies.value.losses.argmin(1)
        return self._came(fed, replies, take(state.models, group), group.tolist())

    def _came(self, fed: Federation, replies: Replies[Any], sent: Stack, group: list[int]) -> visits.Came | None:
        place = {client: number for number, client in enumerate(replies.ids)}
        good = self.usable(fed, replies, sent)
        if good.value is None:
            return None
        rows = [place[client] for client in good.ids]
        return visits.Came(good.ids, good.value, take(sent, torch.tensor(rows)), [group[row] for row in rows])

    @on_client("models", "scores")
    def train(self, c: Cohort, sent: Paced) -> Visit:
        """On the client: local training from the model of its group."""
        loss = evaluate(c, sent.models, "train").loss
        return Visit(pace.trained(c, sent.models, self.opt, sent.pace), c.size, loss)

    @on_client("models", "scores", "labels", "features")
    def look(self, c: Cohort, sent: Paced) -> Looked:
        """On the client: the same, and how its classes pull on the model that all began with."""
        loss = evaluate(c, sent.models, "train").loss
        return Looked(
            pace.trained(c, sent.models, self.opt, sent.pace), c.size, loss, *pulls(c, self.opt), appearances(c)
        )

    @on_client("models", "scores")
    def try_out(self, c: Cohort, sent: Paced) -> Tried:
        """On the client: the same as `train`; beside it, try personal models."""
        visit = self.train(c, sent)
        trials = personal.tried(c, sent.models, self.opt, self.tuning(c.round), sent.pace)
        return Tried(visit.model, visit.size, visit.loss, trials.float())

    @on_client("models", "scores")
    def compare(self, c: Cohort, sent: Pair) -> Weighed:
        """On the client: the losses of both models under its own label prior; then train that of the whole group."""
        return Weighed(pace.trained(c, sent.whole, self.opt, sent.pace), c.size, losses_of_pair(c, sent))

    @on_client("models", "scores")
    def choose(self, c: Cohort, sent: GroupModels) -> Weighed:
        """On the client: the losses of all groups' models under its own label prior; then train the best."""
        losses = losses_of_all(c, sent)
        best = losses.argmin(1)
        return Weighed(pace.trained(c, take(sent.models, best), self.opt, sent.pace[best]), c.size, losses)

    @on_client("scores")
    def find(self, c: Cohort, sent: GroupModels) -> Choice:
        """On the client: only choose."""
        return Choice(losses_of_all(c, sent).argmin(1))

    def admit(self, state: Groups, fed: Federation, new: Sequence[ClientId]) -> Groups:
        """Newcomers are served at once, by the group whose model fits them best; their first visit is as anybody's."""
        return groups.admitted(state, fed, new, self.find, self._classes(fed))

    def fitting(
        self, state: Groups, fed: Federation, ids: Sequence[ClientId], among: Sequence[int]
    ) -> dict[ClientId, int]:
        """By its loss under its own label prior, as newcomers choose."""
        rows, shares = torch.tensor(among), visits.shares_by_group(state, self._classes(fed))
        sent = GroupModels(take(self.cluster_models(state), rows), shares[rows], state.pace[rows])
        return chosen_of(fed.ask(self.find, ids, same=sent, purpose="evaluation"), among)

    def cluster_models(self, state: Groups) -> Stack:
        """A mean over the last rounds where few come to each."""
        return state.steady or state.models

    def ask_about_models(
        self, state: Groups, fed: Federation, ids: Sequence[ClientId], function: Callable[[Cohort, Any], A]
    ) -> Replies[A]:
        """Clients judge their personal models: made of their group's, as their looks and all others' say."""
        stack_, rows = self.model_for(state, ids)
        classes = self._classes(fed)
        out = groups.lacking(state, classes), groups.alike(state, classes)
        choice = torch.tensor(personal.chosen(state.choices, ids, *out))
        message = Prepared(take(stack_, torch.tensor(rows)), choice, state.pace[rows])
        return fed.ask(function, ids, each=message, purpose="evaluation")

    def uses(self, c: Cohort, sent: Prepared) -> Use:
        """On the client: its personal model."""
        return use(c, personal.made(c, sent.models, sent.choice, self.opt, self.tuning(c.round), sent.pace))

    def panels(self, state: Groups, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        """The groups, how they came about, and what clients use."""
        return group_panels(state, ids)
