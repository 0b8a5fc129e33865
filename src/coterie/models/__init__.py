"""Small nets as plain `nn.Module` builders, with their parameter counts stated."""

from ._parts import AutoEncoder
from .registry import MODELS, ModelSpec, build_model, count_parameters

__all__ = ["MODELS", "AutoEncoder", "ModelSpec", "build_model", "count_parameters"]
