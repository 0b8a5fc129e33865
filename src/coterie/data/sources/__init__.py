"""Loaders of the publishers' formats, one file each. They return plain uint8 images and int64 labels."""

from .celeba import Attributes, Celeba, read_attributes, read_celeba
from .cifar import read_cifar10
from .digits import read_digits
from .files import Split
from .idx import read_idx
from .images import ImageFolder, read_images
from .leaf import Leaf, LeafPart, NamedPart, read_leaf, read_leaf_names
from .svhn import read_svhn
from .usps import read_usps

__all__ = [
    "Attributes",
    "Celeba",
    "ImageFolder",
    "Leaf",
    "LeafPart",
    "NamedPart",
    "Split",
    "read_attributes",
    "read_celeba",
    "read_cifar10",
    "read_digits",
    "read_idx",
    "read_images",
    "read_leaf",
    "read_leaf_names",
    "read_svhn",
    "read_usps",
]
