"""The folder that `flwr run` takes: a thin app that imports the installed package."""
