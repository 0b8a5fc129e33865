"""`python -m coterie`, the same as `coterie`."""

from coterie.cli import main

main()
