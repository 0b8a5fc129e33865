"""`python -m coterie`, the same as `coterie`."""

from __future__ import annotations

import sys

from coterie.core import interrupts


def main() -> None:
    """Import the command line and call it; Ctrl-C during the imports is one line, too."""
    interrupts.listen()
    try:
        from coterie.cli import main as cli
    except KeyboardInterrupt:
        sys.stderr.write("coterie: stopped.\n")
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
