"""From a scenario's name and overrides to a population."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coterie.core.errors import CoterieError, unknown
from coterie.core.samples import Samples

from .datasets import data_root, load, read_pacs
from .drift import Drift
from .partition import by_owner
from .pool import rows_of
from .population import LazyPopulation, Source, numbered
from .scenarios import ALPHA_PARTITIONS, PARTITIONS, PIXELS, SCENARIOS, Scenario, scaled
from .share import Sharing, share_own_test, share_split
from .shift import SHIFTS, Shift, ShiftKind, domains
from .users import build_users

_SMALLEST_IMAGE, _LARGEST_IMAGE = 4, 1024


def build(
    name: str,
    *,
    seed: int,
    root: Path | str | None = None,
    clients: int | None = None,
    samples: int | None = None,
    test_samples: int | None = None,
    groups: int | None = None,
    alpha: float | None = None,
    image_size: int | None = None,
    validation: float = 0.0,
    drift: Drift | Sequence[Drift] | None = None,
    unseen: int | float = 0,
    partition: str | None = None,
    pixels: str | None = None,
    shift: ShiftKind | None = None,
    group_sizes: Sequence[int] = (),
    mixed: float = 0.0,
) -> LazyPopulation:
    """The population of a named scenario; what is not given comes from the scenario (see `SCENARIOS`).

    `samples` are a client's training samples, of which the fraction `validation` is set aside. `unseen` is a
    number of further clients that never train, or a fraction of `clients`. An `alpha` where the scenario's
    partition has none makes it "dirichlet-client". `pixels` is how they are scaled, a name in `PIXELS`. `shift` is
    another way in which groups differ, a name in `SHIFTS`. `group_sizes` says how many clients each group has; with 0 a
    group is there for a drift to new groups. Of every client's samples the share `mixed` is as in the next group.
    `root` is the data root (see `data_root`).
    """
    recipe = dict(locals())
    sizes = tuple(group_sizes)
    given = _Given(clients, samples, test_samples, groups, alpha, image_size, unseen, partition, pixels, shift, sizes)
    given.check()
    if name not in SCENARIOS:
        raise unknown("scenario", name, SCENARIOS)
    natural = SCENARIOS[name].partition == "natural"
    if natural:
        given.check_natural(name)
    scenario = given.over(SCENARIOS[name])
    drifts = () if drift is None else (drift,) if isinstance(drift, Drift) else tuple(drift)
    where = data_root(root)
    if natural:
        if drifts:
            raise CoterieError(f"The clients of {name} have no groups to drift between; leave the drift out.")
        users = build_users(scenario, where, seed, unseen=unseen, validation=validation)
        return replace(users, training=scenario.training, scenario=name).made_by(build, recipe)
    total = _required(scenario.clients)
    extra = unseen if isinstance(unseen, int) else round(unseen * total)
    shifts = _shifts(scenario, total)
    if (sizes or mixed) and len(scenario.datasets or scenario.domains) > 1:
        raise CoterieError(f"The groups of {name} have data of their own; leave group_sizes and mixed out.")
    if not 0 <= mixed < 1:
        raise CoterieError(f"mixed is {mixed}; give the share of a client's samples of another group, 0 to below 1.")
    ids, unseen_ids = numbered(total, extra)
    return LazyPopulation(
        ids=ids,
        unseen_ids=unseen_ids,
        sources=_sources(scenario, where, seed, len(shifts), total + extra),
        shifts=shifts,
        classes=scenario.classes,
        normalise=scenario.normalise,
        seed=seed,
        validation=validation,
        drifts=tuple(sorted(drifts, key=lambda one: one.round)),
        training=scenario.training,
        scenario=name,
        sizes=sizes,
        mixed=mixed,
    ).made_by(build, recipe)


@dataclass(frozen=True)
class _Given:
    """What the caller asked for instead of a scenario's defaults."""

    clients: int | None
    samples: int | None
    test_samples: int | None
    groups: int | None
    alpha: float | None
    image_size: int | None
    unseen: int | float
    partition: str | None
    pixels: str | None
    shift: ShiftKind | None
    sizes: tuple[int, ...]

    def check(self) -> None:
        """Refuse what no scenario can do."""
        counts = {
            "clients": self.clients,
            "samples": self.samples,
            "test samples": self.test_samples,
            "groups": self.groups,
        }
        for what, value in counts.items():
            if value is not None and value < 1:
                raise CoterieError(f"{value} {what} were asked for; ask for at least 1.")
        if self.alpha is not None and not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise CoterieError(f"alpha is {self.alpha} and must be above 0; a small one is uneven, 100 nearly even.")
        size = self.image_size
        if size is not None and not _SMALLEST_IMAGE <= size <= _LARGEST_IMAGE:
            raise CoterieError(
                f"Images of {size} x {size} pixels are not possible; give a size from {_SMALLEST_IMAGE} to "
                f"{_LARGEST_IMAGE}."
            )
        if not self.unseen >= 0 or (isinstance(self.unseen, float) and not self.unseen < 1):
            raise CoterieError(f"unseen is {self.unseen}; give a number of clients, or a fraction of them below 1.")
        self._check_names()
        self._check_sizes()

    def _check_names(self) -> None:
        if self.partition is not None and self.partition not in PARTITIONS:
            raise unknown("partition", self.partition, PARTITIONS)
        if self.pixels is not None and self.pixels not in PIXELS:
            raise unknown("scale of pixels", self.pixels, PIXELS)
        if self.alpha is not None and self.partition not in (None, *ALPHA_PARTITIONS):
            raise CoterieError(f"The partition {self.partition} has no alpha; leave one of the two out.")
        if self.shift is not None and self.shift not in SHIFTS:
            raise unknown("shift", self.shift, SHIFTS)

    def _check_sizes(self) -> None:
        if self.sizes and (min(self.sizes) < 0 or not sum(self.sizes)):
            raise CoterieError(f"group_sizes is {list(self.sizes)}; give numbers of clients of at least 0.")
        if self.sizes and self.clients not in (None, sum(self.sizes)):
            raise CoterieError(f"group_sizes are {sum(self.sizes)} clients, not {self.clients}; leave clients out.")
        if self.sizes and self.groups not in (None, len(self.sizes)):
            raise CoterieError(f"group_sizes are {len(self.sizes)} groups, not {self.groups}; leave groups out.")

    def check_natural(self, name: str) -> None:
        """Refuse what makes no sense where clients are real people."""
        shaping = {"groups": self.groups, "alpha": self.alpha, "partition": self.partition, "shift": self.shift}
        for what, value in {**shaping, "group_sizes": self.sizes or None}.items():
            if value is not None:
                raise CoterieError(f"The clients of {name} are its users as they are; leave {what} out.")

    def over(self, default: Scenario) -> Scenario:
        """The scenario with these values in place of its own."""
        partition = self.partition or default.partition
        if self.alpha is not None and partition not in (*ALPHA_PARTITIONS, "natural"):
            partition = "dirichlet-client"
        alpha = default.alpha if self.alpha is None else self.alpha
        if partition in ALPHA_PARTITIONS and alpha is None:
            raise CoterieError(f"The partition {partition} needs an alpha; give one, such as 10.")
        if self.shift is not None and default.shift == "domain":
            raise CoterieError(f"The groups of {default.name} are its sources; leave shift out.")
        return replace(
            default,
            partition=partition,
            alpha=alpha,
            shift=self.shift or default.shift,
            clients=sum(self.sizes) or (default.clients if self.clients is None else self.clients),
            samples=default.samples if self.samples is None else self.samples,
            test_samples=default.test_samples if self.test_samples is None else self.test_samples,
            groups=len(self.sizes) or (default.groups if self.groups is None else self.groups),
            image_size=default.image_size if self.image_size is None else self.image_size,
            normalise=scaled(default, self.pixels or None),
        )


def _shifts(scenario: Scenario, clients: int) -> tuple[Shift, ...]:
    groups, classes = _required(scenario.groups), scenario.classes
    if groups > clients:
        raise CoterieError(
            f"{groups} groups need at least as many clients and there are {clients}; ask for fewer groups."
        )
    if scenario.shift in SHIFTS:
        return tuple(SHIFTS[scenario.shift](groups, classes))
    return tuple(domains(groups, scenario.domains))


def _sources(scenario: Scenario, root: Path, seed: int, groups: int, clients: int) -> tuple[Source, ...]:
    count = groups if scenario.shift == "domain" else 1
    sharing = Sharing(
        partition=scenario.partition,
        clients=math.ceil(clients / count),
        samples=scenario.samples,
        test_samples=scenario.test_samples,
        alpha=scenario.alpha,
        classes=scenario.classes,
        repeat=scenario.repeat,
        seed=seed,
    )
    if scenario.datasets:
        grey = len(scenario.datasets) > 1
        splits = [
            load(name, root, seed, image_size=scenario.image_size, grey=grey) for name in scenario.datasets[:count]
        ]
        return tuple(
            share_split(split, replace(sharing, domain=name))
            for split, name in zip(splits, scenario.datasets, strict=False)
        )
    parts = _pacs_domains(scenario, root)[:count]
    return tuple(share_own_test(part, replace(sharing, domain=name)) for name, part in parts)


def _pacs_domains(scenario: Scenario, root: Path) -> list[tuple[str, Samples]]:
    found = read_pacs(root, scenario.image_size)
    rows = by_owner(found.domain.numpy())
    if len(found.domains) != len(scenario.domains) or len(found.classes) != scenario.classes:
        raise CoterieError(
            f"The folder of {scenario.name} in {root} has {len(found.domains)} domains and {len(found.classes)} "
            f"classes instead of {len(scenario.domains)} and {scenario.classes}; put the complete set there."
        )
    return [(name, rows_of(found.samples, rows[number])) for number, name in enumerate(found.domains)]


def _required(value: int | None) -> int:
    """A number that every scenario but the natural ones has."""
    if value is None:
        raise CoterieError("This scenario has no default number of clients or groups; give one.")
    return value
