"""A stand-in for an accelerator: see accelerator.cpp. Importing `tests.accelerator.device` makes torch know it."""
