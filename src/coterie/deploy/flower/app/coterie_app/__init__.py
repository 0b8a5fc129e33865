"""coterie as a Flower app."""
