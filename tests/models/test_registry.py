"""Every model: its published parameter count, its output shape, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.core.errors import CoterieError
from coterie.models import MODELS, AutoEncoder, build_model, count_parameters

PUBLISHED = {
    "mlp": 199_210,
    "lenet5": 61_706,
    "lenet5-wide": 85_822,
    "pens-cnn": 73_418,
    "leaf-femnist": 6_603_710,
    "femnist-port": 6_603_710,
    "leaf-celeba": 31_202,
    "fedavg-cnn": 1_663_370,
    "emnist-cnn": 1_206_590,
    "autoencoder-fc": 81_304,
    "autoencoder-conv": 47_601,
}
CLASSIFIERS = [name for name in MODELS if not name.startswith("autoencoder")]
KERNEL_LAYERS = (nn.Linear, nn.Conv2d, nn.ReLU, nn.Tanh, nn.MaxPool2d, nn.Flatten)


@pytest.mark.parametrize("name", MODELS)
def test_default_size_has_the_stated_parameters(name: str) -> None:
    spec = MODELS[name]
    model = build_model(name, spec.shape, spec.classes)
    assert count_parameters(model) == spec.parameters
    assert spec.parameters == PUBLISHED.get(name, spec.parameters)
    assert spec.name == name
    assert spec.summary


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_give_logits(name: str) -> None:
    spec = MODELS[name]
    x = torch.rand(2, *spec.shape, generator=torch.Generator().manual_seed(1))
    logits = build_model(name, spec.shape, spec.classes)(x)
    assert logits.shape == (2, spec.classes)
    assert not torch.allclose(logits.sum(1), torch.ones(2), atol=1e-3), "softmax must not be inside the model"


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("mlp", (30,), 4),
        ("digits-mlp", (3, 5, 7), 3),
        ("digits-cnn", (3, 9, 12), 5),
        ("lenet5", (3, 32, 32), 7),
        ("lenet5", (1, 12, 20), 7),
        ("lenet5-wide", (3, 16, 33), 7),
        ("pens-cnn", (1, 28, 22), 62),
        ("cifar-cnn", (1, 8, 15), 2),
        ("leaf-femnist", (1, 14, 14), 10),
        ("femnist-port", (1, 14, 15), 10),
        ("leaf-celeba", (3, 21, 32), 2),
        ("celeba-port", (3, 21, 32), 2),
        ("resnet18", (1, 28, 28), 3),
        ("resnet18", (3, 64, 64), 7),
        ("resnet18-gn", (1, 9, 12), 3),
        ("resnet8", (1, 9, 12), 3),
        ("resnet8-gn", (3, 15, 8), 3),
        ("mobilenetv2", (1, 9, 12), 3),
        ("lenet5-1998", (3, 32, 33), 7),
        ("fedavg-cnn", (3, 9, 12), 4),
        ("emnist-cnn", (3, 9, 12), 4),
        ("char-lstm", (7,), 30),
        ("word-lstm", (3,), 50),
        ("char-transformer", (5,), 30),
    ],
)
def test_models_adapt_to_shape_and_classes(name: str, shape: tuple[int, ...], classes: int) -> None:
    model = build_model(name, shape, classes).eval()
    assert model(torch.zeros(2, *shape)).shape == (2, classes)


def test_resnet18_changes_its_stem_at_64_pixels() -> None:
    small = build_model("resnet18", (3, 32, 32), 7)
    large = build_model("resnet18", (3, 64, 64), 7)
    # conv 7 x 7 instead of 3 x 3, three channels in, 64 out
    assert count_parameters(large) - count_parameters(small) == 3 * 64 * (49 - 9)


@pytest.mark.parametrize(
    ("name", "shape", "code"),
    [
        ("autoencoder-fc", (1, 28, 28), (20,)),
        ("autoencoder-conv", (3, 32, 32), (48, 4, 4)),
        ("autoencoder-conv", (3, 64, 64), (48, 8, 8)),
        ("autoencoder-conv", (1, 16, 24), (48, 2, 3)),
    ],
)
def test_autoencoders_code_and_rebuild(name: str, shape: tuple[int, ...], code: tuple[int, ...]) -> None:
    model = build_model(name, shape, 10)
    assert isinstance(model, AutoEncoder)
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(2))
    assert model.encoder(x).shape == (3, *code)
    rebuilt = model(x).detach()
    assert rebuilt.shape == x.shape
    assert 0 <= float(rebuilt.min()) <= float(rebuilt.max()) <= 1


@pytest.mark.parametrize("name", ["mlp", "digits-mlp", "digits-cnn", "lenet5", "lenet5-wide", "pens-cnn", "cifar-cnn"])
def test_small_nets_are_sequences_of_layers_the_kernel_knows(name: str) -> None:
    model = build_model(name, MODELS[name].shape, 10)
    assert isinstance(model, nn.Sequential)
    assert all(isinstance(layer, KERNEL_LAYERS) for layer in model)
    assert all(layer.stride == (1, 1) for layer in model if isinstance(layer, nn.Conv2d))


def test_leaf_celeba_normalises_by_the_batch_in_evaluation_too() -> None:
    x = torch.rand(4, 3, 84, 84, generator=torch.Generator().manual_seed(3)) * 255
    leaf = build_model("leaf-celeba", (3, 84, 84), 2)
    port = build_model("celeba-port", (3, 84, 84), 2)
    assert torch.equal(leaf(x), leaf.eval()(x))
    assert not list(leaf.buffers())
    assert not torch.allclose(port(x), port.eval()(x))


@pytest.mark.parametrize(
    ("name", "shape", "classes", "words"),
    [
        ("lenet", (1, 28, 28), 10, "did you mean 'lenet5'"),
        ("lenet5", (784,), 10, "needs images"),
        ("lenet5", (1, 8, 8), 10, "at least 12 pixels"),
        ("lenet5-wide", (1, 15, 28), 10, "15 x 28"),
        ("pens-cnn", (3, 21, 32), 10, "at least 22"),
        ("resnet18-imagenet", (3, 28, 28), 10, "at least 32"),
        ("leaf-femnist", (3, 28, 28), 62, "takes 1 channel and the images have 3"),
        ("leaf-celeba", (1, 84, 84), 2, "takes 3 channels and the images have 1"),
        ("autoencoder-conv", (3, 28, 28), 10, "multiples of 8"),
        ("char-lstm", (1, 28, 28), 10, "reads sequences of token ids"),
        ("char-transformer", (1, 28, 28), 10, "reads sequences of token ids"),
        ("mlp", (), 10, "is empty"),
        ("mlp", (0, 3), 10, "is empty"),
        ("mlp", (1, 28, 28), 0, "at least 1 class"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    name: str, shape: tuple[int, ...], classes: int, words: str
) -> None:
    with pytest.raises(CoterieError, match=words):
        build_model(name, shape, classes)


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("lenet5", 12),
        ("lenet5-wide", 16),
        ("pens-cnn", 22),
        ("cifar-cnn", 8),
        ("digits-cnn", 4),
        ("resnet18", 8),
        ("resnet8", 4),
        ("mobilenetv2", 8),
        ("lenet5-1998", 12),
        ("fedavg-cnn", 4),
        ("emnist-cnn", 6),
    ],
)
def test_the_least_size_works(name: str, side: int) -> None:
    assert build_model(name, (1, side, side), 3).eval()(torch.zeros(1, 1, side, side)).shape == (1, 3)
