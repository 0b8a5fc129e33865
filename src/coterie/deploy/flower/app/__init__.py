"""The folder that `flwr run` takes: a thin app that imports the installed package.

It is sent to machines as it is and composes the layers above, so it belongs to none of them.
"""
