"""A run from its configuration to its result, and what it leaves on disk."""
