"""Builds the stand-in (once: it is kept under a digest of all that it is made of) and registers it with torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import types
from hashlib import blake2b
from pathlib import Path

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from tests.tiny import small_net

NAME = "standin"
_SOURCE = Path(__file__).with_name("accelerator.cpp")
_FLAGS = ("-std=c++20", "-O0", "-fPIC", "-shared")
COMPILER = shutil.which(os.environ.get("CXX", "g++"))


def _library() -> Path:
    assert COMPILER is not None
    made_of = _SOURCE.read_bytes() + torch.__version__.encode() + repr(_FLAGS).encode()
    folder = Path(tempfile.gettempdir()) / f"coterie-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"accelerator-{blake2b(made_of, digest_size=8).hexdigest()}.so"
    if not library.exists():
        torch_ = Path(torch.__file__).parent
        include = torch_ / "include"
        draft = library.with_suffix(f".{os.getpid()}")
        where = [f"-I{include}", f"-I{include / 'torch/csrc/api/include'}", f"-L{torch_ / 'lib'}"]
        command = [COMPILER, *_FLAGS, *where, str(_SOURCE), "-ltorch_cpu", "-lc10", "-o", str(draft)]
        subprocess.run(command, check=True, capture_output=True, timeout=280)
        draft.replace(library)
    return library


def register() -> torch.device:
    """Make torch know the device."""
    if not hasattr(torch, NAME):
        rename_privateuse1_backend(NAME)
        torch.ops.load_library(_library())
        module = types.ModuleType(f"torch.{NAME}")
        module.__dict__.update(
            is_available=lambda: True,
            is_initialized=lambda: True,
            device_count=lambda: 1,
            current_device=lambda: 0,
            _is_in_bad_fork=lambda: False,
            manual_seed=lambda _: None,  # the CPU computes, and draws
            manual_seed_all=lambda _: None,
            get_amp_supported_dtype=lambda: [torch.bfloat16],
        )
        torch._register_device_module(NAME, module)
    return torch.device(NAME, 0)


def spawned_net() -> torch.nn.Module:
    """The small net; a process that is sent this function imports this file, and with it the stand-in."""
    return small_net()


if COMPILER is not None:
    register()
