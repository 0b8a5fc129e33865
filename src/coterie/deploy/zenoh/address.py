"""Where a peer is reached, whom it asks about others, and by which certificates they know each other."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zenoh

from coterie.core.errors import CoterieError
from coterie.core.samples import ClientId
from coterie.deploy.boundary import check_name
from coterie.deploy.zenoh.signing import Acquaintances, Identity

_FRAMING = 1 << 16  # what zenoh puts around a payload, and signatures


@dataclass(frozen=True)
class PeerSecurity:
    """The CA that all peers trust, and this peer's certificate, shown to others both when calling and when called."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: Path) -> PeerSecurity:
        """What `coterie certs` has put in a peer's folder."""
        made = cls(folder / "ca.pem", folder / "peer.pem", folder / "peer.key")
        for path in (made.ca, made.certificate, made.key):
            if not path.is_file():
                raise CoterieError(f"There is no {path}; --certs takes a folder that `coterie certs` made for a peer.")
        return made

    @classmethod
    def of_each(cls, folder: Path, names: Iterable[ClientId]) -> dict[ClientId, PeerSecurity]:
        """The same for several peers of one process, each with the folder of its name: all must be of one CA."""
        found = {name: cls.of(folder / check_name(name, "--names")) for name in names}
        authorities = {each.ca.read_bytes() for each in found.values()}
        if len(authorities) > 1:
            raise CoterieError(f"The certificates in {folder} are of different CAs; peers of a process need one.")
        return found

    def identity(self, name: ClientId) -> Identity:
        """What the peer signs with; its certificate must be that of its name."""
        return Identity(name, self.certificate, self.key)

    def acquaintances(self) -> Acquaintances:
        """Those whom peers with this CA have met: nobody yet."""
        return Acquaintances(self.ca)


@dataclass(frozen=True)
class Address:
    """Where a peer listens, and whom it asks first about others."""

    listen: str
    seeds: tuple[str, ...] = ()
    security: PeerSecurity | None = None

    def config(self, limit: int) -> zenoh.Config:
        """As zenoh wants it: peers are found from seeds alone, and nothing longer than `limit` is put together."""
        kind = "tcp" if self.security is None else "tls"
        tables: dict[str, Any] = {
            "mode": "peer",
            "listen/endpoints": [f"{kind}/{self.listen}"],
            "connect/endpoints": [f"{kind}/{seed}" for seed in self.seeds if seed != self.listen],
            "connect/timeout_ms": -1,  # in the background, for as long as it takes
            "connect/exit_on_failure": False,
            "scouting/multicast/enabled": False,
            "scouting/gossip/enabled": True,
            "transport/link/rx/max_message_size": limit + _FRAMING,
            # models go by the link, and with certificates encrypted. Else each session takes 16 MB of the machine's
            # shared memory at its first model, and after a run they are not given back before the process ends
            "transport/shared_memory/enabled": False,
        }
        if self.security is not None:
            tables["transport/link/tls"] = {
                "root_ca_certificate": str(self.security.ca),
                "listen_certificate": str(self.security.certificate),
                "listen_private_key": str(self.security.key),
                "connect_certificate": str(self.security.certificate),
                "connect_private_key": str(self.security.key),
                "enable_mtls": True,
                "verify_name_on_connect": True,
            }
        config = zenoh.Config()
        try:
            for key, value in tables.items():
                config.insert_json5(key, json.dumps(value))
        except zenoh.ZError as error:
            raise CoterieError(f"zenoh does not take these addresses or certificates: {error}.") from error
        return config
