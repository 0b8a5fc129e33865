"""Embedding clustering (Prigent et al. 2024): one-shot clusters from compressed, quantised, randomised embeddings."""

from coterie.methods.embedding.method import Embedding

__all__ = ["Embedding"]
