"""PANM (Li et al.): peers without a server who find their own neighbours."""

from coterie.methods.panm.method import PANM

__all__ = ["PANM"]
