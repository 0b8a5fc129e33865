"""Laws that every method keeps.

"Equal" and "bit for bit" assume the same kind of CPU, the same build of the kernel and the same versions of torch,
numpy and scikit-learn; the number of cores and threads is not assumed (docs/architecture.md). `test_other_machines`
runs a part of the laws as other machines would.
"""
