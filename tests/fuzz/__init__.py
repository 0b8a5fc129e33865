"""Mutated input for every place where bytes from elsewhere come in."""
