"""The models by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from coterie.core.errors import CoterieError, unknown

from . import autoencoders, leaf, lenets, mobilenet, perceptrons, resnet, sequences, small_cnns
from ._parts import Shape


@dataclass(frozen=True)
class ModelSpec:
    """What is known before a model is built; shape, classes and parameters are its default ones."""

    name: str
    summary: str
    shape: Shape
    classes: int
    parameters: int
    build: Callable[[Shape, int], nn.Module]


_SPECS = (
    ModelSpec("mlp", "784-200-200-10, ReLU (PANM)", (1, 28, 28), 10, 199_210, perceptrons.mlp),
    ModelSpec("digits-mlp", "64-64-10, ReLU, for 8 x 8 digits", (1, 8, 8), 10, 4_810, perceptrons.digits_mlp),
    ModelSpec("digits-cnn", "two 3 x 3 convolutions, 16 and 32", (1, 8, 8), 10, 6_090, small_cnns.digits_cnn),
    ModelSpec("lenet5", "LeNet-5, 6 and 16 channels, ReLU", (1, 28, 28), 10, 61_706, lenets.lenet5),
    ModelSpec("lenet5-1998", "LeNet-5 with tanh and average pooling", (1, 28, 28), 10, 61_706, lenets.lenet5_1998),
    ModelSpec(
        "lenet5-wide",
        "LeNet, 16 and 32 channels, tanh (embedding clustering)",
        (1, 28, 28),
        10,
        85_822,
        lenets.lenet5_wide,
    ),
    ModelSpec("pens-cnn", "3 convolutions, 2 linear layers (PENS, PANM)", (3, 32, 32), 10, 73_418, small_cnns.pens_cnn),
    ModelSpec("cifar-cnn", "3 padded convolutions, 2 linear layers", (3, 32, 32), 10, 122_570, small_cnns.cifar_cnn),
    ModelSpec("fedavg-cnn", "FedAvg's net for MNIST", (1, 28, 28), 10, 1_663_370, small_cnns.fedavg_cnn),
    ModelSpec(
        "emnist-cnn", "two convolutions, dropout (TFF, fedjax)", (1, 28, 28), 62, 1_206_590, small_cnns.emnist_cnn
    ),
    ModelSpec("leaf-femnist", "LEAF's net for FEMNIST", (1, 28, 28), 62, 6_603_710, leaf.leaf_femnist),
    ModelSpec("femnist-port", "FEMNIST net as FedCG's author ported it", (1, 28, 28), 62, 6_603_710, leaf.femnist_port),
    ModelSpec("leaf-celeba", "LEAF's net for CelebA", (3, 84, 84), 2, 31_202, leaf.leaf_celeba),
    ModelSpec("celeba-port", "CelebA net as FedCG's author ported it", (3, 84, 84), 2, 32_034, leaf.celeba_port),
    ModelSpec("resnet18", "ResNet-18; 3 x 3 stem below 64 pixels", (3, 32, 32), 10, 11_173_962, resnet.resnet18),
    ModelSpec(
        "resnet18-imagenet",
        "ResNet-18 with the ImageNet stem at any size",
        (3, 32, 32),
        10,
        11_181_642,
        resnet.resnet18_imagenet,
    ),
    ModelSpec("resnet18-gn", "ResNet-18 with group normalisation", (3, 32, 32), 10, 11_173_962, resnet.resnet18_gn),
    ModelSpec("resnet8", "ResNet-8, 16-32-64 channels", (3, 32, 32), 10, 78_042, resnet.resnet8),
    ModelSpec("resnet8-gn", "ResNet-8 with group normalisation", (3, 32, 32), 10, 78_042, resnet.resnet8_gn),
    ModelSpec("mobilenetv2", "MobileNetV2 for small images", (3, 32, 32), 10, 2_236_682, mobilenet.mobilenet_v2),
    ModelSpec("char-lstm", "LEAF's net for Shakespeare: the next character", (80,), 80, 819_920, sequences.char_lstm),
    ModelSpec("word-lstm", "Stack Overflow's LSTM (TFF): the next word", (20,), 10_004, 4_053_428, sequences.word_lstm),
    ModelSpec(
        "char-transformer",
        "two blocks of four heads, 96 wide: the next token",
        (64,),
        80,
        245_264,
        sequences.char_transformer,
    ),
    ModelSpec("autoencoder-fc", "784-50-20-50-784 autoencoder", (1, 28, 28), 10, 81_304, autoencoders.autoencoder_fc),
    ModelSpec(
        "autoencoder-conv",
        "convolutional autoencoder, 12-24-48 maps",
        (3, 32, 32),
        10,
        47_601,
        autoencoders.autoencoder_conv,
    ),
)

MODELS: dict[str, ModelSpec] = {spec.name: spec for spec in _SPECS}


def build_model(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A freshly initialised model for inputs of this shape.

    The layers draw from torch's global generator, as those of any module do: a caller that needs equal weights sets it
    (`Task.init` does).
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    if not shape or any(side < 1 for side in shape):
        raise CoterieError(f"The input shape {tuple(shape)} is empty; give (channels, height, width) or (features,).")
    if classes < 1:  # one output is enough for a number
        raise CoterieError(f"A model predicts at least 1 class or number, not {classes}; count the labels again.")
    return MODELS[name].build(tuple(shape), classes)


def count_parameters(model: nn.Module) -> int:
    """How many numbers training changes (buffers not counted)."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
