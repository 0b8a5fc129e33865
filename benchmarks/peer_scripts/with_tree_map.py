"""Imported before fedjax 0.0.17, which still calls `jax.tree_map`; jax 0.10 has it in `jax.tree_util` alone."""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import jax

jax.tree_map = jax.tree_util.tree_map
