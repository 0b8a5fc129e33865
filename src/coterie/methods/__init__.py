"""The methods, one file per paper."""

from __future__ import annotations

from typing import Any

from coterie.core import user_code
from coterie.core.errors import CoterieError, unknown
from coterie.core.settings import from_settings
from coterie.methods.apfl import APFL
from coterie.methods.auto.method import Auto
from coterie.methods.base import ServerMethod
from coterie.methods.cfl import CFL
from coterie.methods.ditto import Ditto
from coterie.methods.embedding.method import Embedding
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbn import FedBN
from coterie.methods.fedcg import FedCG
from coterie.methods.fedfomo import FedFomo
from coterie.methods.fedper import FedPer
from coterie.methods.fedprox import FedProx
from coterie.methods.fedrep import FedRep
from coterie.methods.fedsem import FedSEM
from coterie.methods.fedsoft import FedSoft
from coterie.methods.ifca import IFCA
from coterie.methods.ladd import LADD
from coterie.methods.local import Local
from coterie.methods.local_training import TITLES
from coterie.methods.md_icfl.method import MDICFL
from coterie.methods.oracle import Oracle
from coterie.methods.p2p.base import PeerMethod
from coterie.methods.p2p.gossip import Gossip
from coterie.methods.p2p.pens import PENS
from coterie.methods.panm.method import PANM
from coterie.methods.pfedme import PFedMe
from coterie.methods.scaffold import Scaffold

Method = ServerMethod[Any] | PeerMethod[Any]
"""What a run is about: a method with a server, or one of peers."""

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        Auto,
        Local,
        FedAvg,
        FedProx,
        Scaffold,
        IFCA,
        FedSEM,
        FedSoft,
        CFL,
        FedFomo,
        MDICFL,
        LADD,
        Embedding,
        FedCG,
        Ditto,
        FedPer,
        FedRep,
        APFL,
        FedBN,
        PFedMe,
        Oracle,
        Gossip,
        PENS,
        PANM,
    )
}


def title_of(name: str) -> str:
    """A method's title by its name; that of one that this process does not know is its name."""
    return TITLES.get(name, name)


def method_named(name: str) -> type[Method]:
    """The class of a method, by its name on the command line."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def chosen_method(name: str) -> type[Method]:
    """The class that the user of this machine names: one of `METHODS`, or `file.py:Class` of their own.

    What another machine names is looked up with `method_named` alone, which runs no file.
    """
    if ":" not in name:
        return method_named(name)
    kind: Any = user_code.load(name, "method")
    if not (isinstance(kind, type) and issubclass(kind, (ServerMethod, PeerMethod))):
        raise CoterieError(f"{name} is not a method; let the class derive from coterie.ServerMethod or PeerMethod.")
    if not isinstance(getattr(kind, "name", None), str):
        raise CoterieError(f'{name} has no name; give the class one: name: ClassVar[str] = "my-method".')
    if kind.name in METHODS:
        raise CoterieError(f"{name} has the name {kind.name!r} of a method that exists; give the class another name.")
    own: type[Method] = kind
    return own


def method(name: str, **settings: Any) -> Method:
    """A method by its name, with its settings: `method("ifca", k=3, lr=0.05)`, `method("fedcg", preset="paper")`.

    A preset may say other things on some scenarios; `scenario="multi-source-digits"` names the one that is meant.
    """
    scenario = str(settings.pop("scenario", ""))
    kind = chosen_method(name)
    return from_settings(kind, kind.expand(settings, scenario), name)
