"""The named scenarios: which data, shared out how, under which shifts. A row of the table is a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.core.errors import unknown
from coterie.core.samples import Normalise

from .shift import ShiftKind
from .sources.digits import LEVELS

Training = Mapping[str, float | int | str]

PARTITIONS: dict[str, str] = {
    "equal": "every client the same number of samples at random",
    "balanced": "the same number, all classes alike",
    "dirichlet": "each class cut among the clients by Dirichlet(alpha); all samples used",
    "dirichlet-client": "each client's label mix drawn from Dirichlet(alpha * p); clients may share samples",
    "shards": "samples sorted by label, two shards a client",
    "quantity": "sizes drawn from Dirichlet(alpha), labels at random",
}
ALPHA_PARTITIONS = ("dirichlet", "dirichlet-client", "quantity")
"""Those that need an alpha."""
PIXELS = {"unit": ((0.0,), (1.0,)), "symmetric": ((0.5,), (0.5,))}
"""Means and deviations that put pixels into [0, 1] or into [-1, 1]."""


@dataclass(frozen=True)
class Scenario:
    """A named scenario and its defaults; None for samples means all that there are."""

    name: str
    summary: str
    folders: tuple[str, ...]
    """The folders it needs under the data root."""
    model: str
    shift: ShiftKind
    partition: str
    """A name in `PARTITIONS`, or "natural" where clients are the users of a LEAF folder."""
    clients: int | None
    samples: int | None
    test_samples: int | None
    groups: int | None
    alpha: float | None
    image_size: int
    normalise: Normalise
    classes: int = 10
    datasets: tuple[str, ...] = ()
    """Names in `datasets.DATASETS`, one per domain; empty for PACS and LEAF folders."""
    domains: tuple[str, ...] = ()
    """What groups are called where each has a domain of its own."""
    repeat: bool = False
    """Whether a client may be given more samples than a small source has, some of them twice."""
    training: Training = field(default_factory=dict)
    """Local training unless the user, or a method of itself (`scenario_training`), says otherwise."""


def scaled(scenario: Scenario, pixels: str | None) -> Normalise:
    """How a scenario's pixels become inputs: as it says, or by a name in `PIXELS`."""
    if pixels is None:
        return scenario.normalise
    if pixels not in PIXELS:
        raise unknown("scale of pixels", pixels, PIXELS)
    return Normalise(*PIXELS[pixels], scenario.normalise.scale)


_UNIT = Normalise(scale=1 / 255)
"""Pixels in [0, 1]."""
_SYMMETRIC = Normalise((0.5,), (0.5,), 1 / 255)
"""Pixels in [-1, 1], as MD-ICFL has them."""
_SYMMETRIC_RGB = Normalise((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 1 / 255)
_FASHION = Normalise((0.2860,), (0.3530,), 1 / 255)
_CIFAR10 = Normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 1 / 255)
"""Mean and deviation of the training images, for the papers that do not say how they scale pixels."""


_PANM: Training = {"epochs": 3, "batch": 128, "lr": 0.08, "lr_decay": 0.99, "momentum": 0.9}
_MD_ICFL: Training = {"epochs": 2, "batch": 50, "lr": 0.1, "momentum": 0.0}
_ADAM: Training = {"optimiser": "adam", "lr": 0.001, "batch": 32}
_SLOW_SGD: Training = {"epochs": 1, "batch": 10, "lr": 0.01, "momentum": 0.0}
"""Local training as the papers have it; LEAF's users train with small batches and plain SGD."""


def _panm(name: str, summary: str, dataset: str, shift: ShiftKind) -> Scenario:
    """PANM: 100 class-balanced clients, 200 training and 100 test images, four groups (or two)."""
    colour = dataset == "cifar10"
    return Scenario(
        name=name,
        summary=summary,
        folders=(dataset,),
        model="pens-cnn" if colour else "mlp",
        shift=shift,
        partition="balanced",
        clients=100,
        samples=200,
        test_samples=100,
        groups=4,
        alpha=None,
        image_size=32 if colour else 28,
        normalise=_CIFAR10 if colour else _FASHION,
        datasets=(dataset,),
        training=_PANM,
    )


def _md_icfl(name: str, summary: str, dataset: str, samples: int, alpha: float) -> Scenario:
    """MD-ICFL: 48 clients, labels Dirichlet(alpha * p) after the swap, tests with all labels."""
    colour = dataset == "cifar10"
    return Scenario(
        name=name,
        summary=summary,
        folders=(dataset,),
        model="cifar-cnn" if colour else "lenet5",
        shift="swap-rotation",
        partition="dirichlet-client",
        clients=48,
        samples=samples,
        test_samples=500,
        groups=4,
        alpha=alpha,
        image_size=32 if colour else 28,
        normalise=_SYMMETRIC_RGB if colour else _SYMMETRIC,
        datasets=(dataset,),
        training={**_MD_ICFL, "epochs": 1} if colour else _MD_ICFL,
    )


def _embedding(name: str, summary: str, dataset: str, shift: ShiftKind, model: str, image_size: int) -> Scenario:
    """Embedding clustering: all images on 100 clients, each class cut by Dirichlet(10), four groups."""
    return Scenario(
        name=name,
        summary=summary,
        folders=(dataset,),
        model=model,
        shift=shift,
        partition="dirichlet",
        clients=100,
        samples=None,
        test_samples=None,
        groups=4,
        alpha=10.0,
        image_size=image_size,
        normalise=_UNIT,
        datasets=(dataset,),
        training={**_ADAM, "epochs": 1 if dataset == "cifar10" else 5},
    )


def _leaf(name: str, summary: str, model: str, image_size: int, classes: int, normalise: Normalise) -> Scenario:
    """Clients are the users of a LEAF folder; their groups are not known."""
    return Scenario(
        name=name,
        summary=summary,
        folders=(name,),
        model=model,
        shift="none",
        partition="natural",
        clients=None,
        samples=None,
        test_samples=None,
        groups=None,
        alpha=None,
        image_size=image_size,
        classes=classes,
        normalise=normalise,
        training=_SLOW_SGD,
    )


_SCENARIOS = (
    Scenario(
        name="rotated-digits",
        summary="scikit-learn's 8 x 8 digits in 4 rotations, no download: 40 clients with 35 images",
        folders=(),
        model="digits-mlp",
        shift="rotation",
        partition="equal",
        clients=40,
        samples=35,
        test_samples=100,
        groups=4,
        alpha=None,
        image_size=8,
        normalise=Normalise(scale=1 / LEVELS),
        datasets=("digits",),
        training={"epochs": 5, "batch": 16, "lr": 0.1, "momentum": 0.9},
    ),
    _embedding("rotated-mnist", "MNIST in 4 rotations (embedding clustering)", "mnist", "rotation", "lenet5", 28),
    _panm("rotated-fashion", "Fashion-MNIST in 4 rotations (PANM)", "fashion-mnist", "rotation"),
    _panm("rotated-cifar10", "CIFAR-10 in 4 rotations (PANM)", "cifar10", "rotation"),
    _panm("swapped-fashion", "Fashion-MNIST, a pair of labels swapped per group (PANM)", "fashion-mnist", "swap"),
    _panm("swapped-cifar10", "CIFAR-10, a pair of labels swapped per group (PANM)", "cifar10", "swap"),
    _embedding(
        "cycled-cifar10",
        "CIFAR-10 with labels (y - group) mod 10 (embedding clustering)",
        "cifar10",
        "cycle",
        "cifar-cnn",
        32,
    ),
    _md_icfl("swapped-rotated-mnist", "MNIST, rotated and a pair swapped per group (MD-ICFL)", "mnist", 1000, 3.0),
    _md_icfl(
        "swapped-rotated-cifar10", "CIFAR-10, rotated and a pair swapped per group (MD-ICFL)", "cifar10", 5000, 3.0
    ),
    _md_icfl(
        "swapped-rotated-fashion",
        "Fashion-MNIST, rotated and a pair swapped per group (after MD-ICFL)",
        "fashion-mnist",
        1000,
        3.0,
    ),
    Scenario(
        name="multi-source-digits",
        summary="digits of MNIST, USPS, SVHN and sign language, one source a group (MD-ICFL)",
        folders=("mnist", "usps", "svhn", "sign"),
        model="lenet5",
        shift="domain",
        partition="dirichlet-client",
        clients=48,
        samples=1000,
        test_samples=400,
        groups=4,
        alpha=100.0,
        image_size=28,
        normalise=_SYMMETRIC,
        datasets=("mnist", "usps", "svhn", "sign"),
        domains=("mnist", "usps", "svhn", "sign"),
        repeat=True,
        training={**_MD_ICFL, "epochs": 3},
    ),
    Scenario(
        name="pacs",
        summary="photos, art, cartoons and sketches of 7 classes, one domain a group (embedding clustering)",
        folders=("pacs",),
        model="cifar-cnn",
        shift="domain",
        partition="dirichlet",
        clients=40,
        samples=None,
        test_samples=None,
        groups=4,
        alpha=10.0,
        image_size=64,
        normalise=_UNIT,
        classes=7,
        domains=("art_painting", "cartoon", "photo", "sketch"),
        training={**_ADAM, "epochs": 1},
    ),
    _leaf("mnist-writers", "MNIST's digits by the hand that wrote them", "lenet5", 28, 10, _UNIT),
    _leaf("femnist", "LEAF's FEMNIST by writer", "leaf-femnist", 28, 62, _UNIT),
    _leaf("celeba", "LEAF's CelebA by celebrity: smiling or not", "leaf-celeba", 84, 2, Normalise()),
)

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _SCENARIOS}
"""Every scenario by name. CelebA's pixels stay 0..255, as in LEAF; FEMNIST's are in [0, 1]."""
