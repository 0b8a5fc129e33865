"""LADD: clients are clustered once by the style of their images, its low frequencies (Shenaj et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.federation import Federation, Nothing, on_client
from coterie.core.groupings import different, k_means
from coterie.core.rng import key64, rng
from coterie.core.samples import ClientId
from coterie.core.settings import AUTO
from coterie.core.states import row, spread
from coterie.methods.base import Log
from coterie.methods.class_means import class_means
from coterie.methods.clustered import AverageInClusters, Clusters

_RADIUS_SHARE = 0.1
_SMALLEST = 1e-6  # amplitude whose logarithm is taken


@dataclass(frozen=True)
class Style:
    """A client's styles class by class, [classes, window], and of which classes it has samples."""

    style: Tensor
    present: Tensor


@dataclass(frozen=True)
class Scale:
    """What makes styles comparable: the middle of each number over the clients that have it, and its unit."""

    middle: Tensor
    unit: Tensor


@dataclass(frozen=True)
class Styled(Clusters):
    """Clusters with the mean style of each, for newcomers, and the scale that these are in."""

    centres: Tensor | None = None
    scale: Scale | None = None


@dataclass(frozen=True)
class LADD(AverageInClusters[Styled]):
    """Style = mean FFT amplitude in a window around frequency 0; k-means over clients; FedAvg inside the clusters."""

    k: int = field(default=0, metadata={"help": "number of clusters; auto (0): by the best silhouette", AUTO: 0})
    most: int = field(default=8, metadata={"help": "the most clusters that the silhouette may choose"})
    radius: int = field(default=0, metadata={"help": "half-width b of the window; 0: a tenth of the image's side"})
    per_class: bool = field(
        default=True, metadata={"help": "one style per class (the paper's baseline), or one in all"}
    )

    amplitudes: Literal["raw", "standardised", "log"] = field(
        default="raw", metadata={"help": "amplitudes as they are (LADD), each with deviation 1, or their logarithms"}
    )
    missing: Literal["mean", "noise"] = field(
        default="mean",
        metadata={"help": "a class a client lacks: the mean of those who have it (ours), or noise in [0, 1)"},
    )

    name: ClassVar[str] = "ladd"
    title: ClassVar[str] = "LADD"
    paper: ClassVar[str] = "Shenaj et al. 2023, Learning across domains and devices"
    summary: ClassVar[str] = "one-shot clusters by image style (FFT amplitudes) and k-means"
    use_when: ClassVar[str] = "groups differ in colour, contrast or style of their images; it clusters once"
    avoid_when: ClassVar[str] = "groups are rotations, drift, or differ in what amplitudes do not show"
    state_type: ClassVar[type[Styled]] = Styled

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.k >= 0, "k", "be at least 0")
        self._require(self.most >= 2, "most", "be at least 2")
        self._require(self.radius >= 0, "radius", "be at least 0")

    def init(self, fed: Federation) -> Styled:
        """Cluster by style; every cluster starts from the same model."""
        if len(fed.task.shape) != 3:
            raise CoterieError(
                f"ladd needs images (channels, height, width) and the inputs are {tuple(fed.task.shape)}."
            )
        self._require_clients(fed, self.k)
        if self.per_class and fed.task.kind in ("multilabel", "regression"):
            raise CoterieError(f"ladd takes a style for each class, and {fed.task.kind} has none; set per_class=false.")
        return self._started(fed, fed.task.init(fed.seed))

    def _started(self, fed: Federation, model: dict[str, Tensor]) -> Styled:
        cluster, centres, scale = self._found(fed, fed.ids)
        return Styled(spread(model, 1 if centres is None else len(centres)), cluster, centres, scale)

    def _found(self, fed: Federation, ids: Sequence[ClientId]) -> tuple[dict[str, int], Tensor | None, Scale | None]:
        replies = fed.ask(self.describe, sorted(ids), same=Nothing())
        if replies.value is None:
            return {}, None, None
        labels, centres, scale = self.group(replies.value, fed.seed)
        return dict(zip(replies.ids, labels, strict=True)), centres, scale

    def group(self, sent: Style, seed: int) -> tuple[list[int], Tensor, Scale]:
        """The clusters of clients with these styles, the mean style of each, and the scale that it is in."""
        scale = scale_of(sent, self.amplitudes)
        styles = self._comparable(sent, scale).numpy()
        labels = cluster_styles(styles, self.k, self.most, seed)
        centres = np.stack([styles[labels == number].mean(0) for number in range(labels.max() + 1)])
        return labels.tolist(), torch.from_numpy(centres), scale

    def _comparable(self, sent: Style, scale: Scale) -> Tensor:
        """Styles as k-means sees them, [clients, classes * window]."""
        filled = torch.where(sent.present[:, :, None], amplified(sent, self.amplitudes), scale.middle)
        return (filled / scale.unit).flatten(1)

    @on_client("styles")
    def describe(self, c: Cohort, sent: Nothing) -> Style:
        """On the client: the mean amplitudes of its images, class by class."""
        styles, present = [], []
        classes = c.task.classes if self.per_class else 1
        for client, data in zip(c.ids, c.data, strict=True):
            amplitudes = style(c.task.normalise(data.train.x, torch.float32), self.radius)
            noise = rng(c.seed, "missing classes", client)
            labels = data.train.y if self.per_class else torch.zeros(len(data.train), dtype=torch.int64)
            styles.append(class_means(amplitudes, labels, classes, noise))
            has = torch.isin(torch.arange(classes), labels)
            present.append(has if self.missing == "mean" else torch.ones_like(has))
        return Style(torch.stack(styles), torch.stack(present))

    def step(self, state: Styled, fed: Federation) -> tuple[Styled, Log]:
        """FedAvg inside the clusters; clients whose style was lost are asked again first."""
        if not state.cluster:
            state = self._started(fed, row(state.models, 0))
        else:
            state = self.admit(state, fed, [client for client in fed.ids if client not in state.cluster])
        if not state.cluster:
            return state, {}
        return self.averaged(state, self.train_clusters(state, fed)), {}

    def admit(self, state: Styled, fed: Federation, new: Sequence[ClientId]) -> Styled:
        """Newcomers go to the nearest style."""
        if not new or state.centres is None or state.scale is None:
            return state
        replies = fed.ask(self.describe, sorted(new), same=Nothing())
        if replies.value is None:
            return state
        nearest = torch.cdist(self._comparable(replies.value, state.scale), state.centres).argmin(1).tolist()
        return replace(state, cluster={**state.cluster, **dict(zip(replies.ids, nearest, strict=True))})


def amplified(sent: Style, amplitudes: str) -> Tensor:
    """The amplitudes that were sent, or their logarithms."""
    styles = sent.style.double()
    return styles.clamp_min(_SMALLEST).log() if amplitudes == "log" else styles


def scale_of(sent: Style, amplitudes: str) -> Scale:
    """The scale of these clients' styles: middle 0 for a class without clients, unit 1 unless standardised."""
    styles, has = amplified(sent, amplitudes), sent.present[:, :, None].double()
    number = has.sum(0).clamp_min(1)
    middle = (styles * has).sum(0) / number
    if amplitudes != "standardised":
        return Scale(middle, torch.ones_like(middle))
    deviation = (((styles - middle) ** 2 * has).sum(0) / number).sqrt()
    return Scale(middle, torch.where(deviation > 0, deviation, 1.0))


def style(images: Tensor, radius: int = 0) -> Tensor:
    """Amplitudes of the lowest frequencies of images [n, channels, height, width], [n, channels * window].

    The window reaches `radius` frequencies to each side of 0 (0: a tenth of the shorter side, at least 1).
    """
    if images.dim() != 4:
        raise CoterieError(f"Styles are of images [n, channels, height, width] and {tuple(images.shape)} was given.")
    height, width = images.shape[2:]
    reach = radius or max(1, int(_RADIUS_SHARE * min(height, width)))
    if 2 * reach + 1 > min(height, width):
        raise CoterieError(
            f"A style window of half-width {reach} does not fit {height} x {width} pixels; take a smaller."
        )
    amplitude = torch.fft.fftshift(torch.fft.fft2(images).abs(), dim=(2, 3))
    y, x = height // 2, width // 2
    window: Tensor = amplitude[:, :, y - reach : y + reach + 1, x - reach : x + reach + 1]
    return window.flatten(1)


def cluster_styles(
    styles: np.ndarray[tuple[int, ...], np.dtype[np.float64]], k: int, most: int, seed: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """k-means into k groups, or into the number from 2 to `most` with the best silhouette, numbered by first member."""
    from sklearn.metrics import silhouette_score

    clients, points = len(styles), torch.from_numpy(styles)
    distinct = different(points)
    numbers = [min(k, distinct)] if k else list(range(2, min(most, clients - 1, distinct) + 1))
    if not numbers or numbers == [1]:
        return np.zeros(clients, np.int64)
    fits = {number: k_means(points, number, key64(seed, "styles", number))[0].numpy() for number in numbers}
    best = numbers[0] if len(numbers) == 1 else max(numbers, key=lambda n: silhouette_score(styles, fits[n]))
    _, first, inverse = np.unique(fits[best], return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first)).astype(np.int64)[inverse]
