"""Server methods on Flower."""
