"""MD-ICFL (Zhang et al. 2024): clusters found on the server from the distance between models."""

from coterie.methods.md_icfl.method import MDICFL

__all__ = ["MDICFL"]
