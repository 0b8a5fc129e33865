"""Imported before libraries that import torchvision and, for this work, use none of it."""

from __future__ import annotations

import importlib

import torch

try:
    importlib.import_module("torchvision")
except RuntimeError:
    # one built for CUDA beside a torch that is not: it stumbles over operators that its own library would define
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    importlib.import_module("torchvision")
