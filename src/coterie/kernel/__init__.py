"""Local training of small sequential networks in C++; torch is the reference and the fall-back.

`plan` translates a module or says why it does not; `why_not` says why the kernel is not used at all.
"""

from coterie.core.compiled import Refusal
from coterie.kernel.library import installed
from coterie.kernel.net import Net, Routing
from coterie.kernel.translate import plan

__all__ = ["Net", "Refusal", "Routing", "plan", "why_not"]


def why_not() -> str | None:
    """None where the kernel is compiled and this processor runs it, else the reason."""
    library = installed()
    return library if isinstance(library, str) else None
