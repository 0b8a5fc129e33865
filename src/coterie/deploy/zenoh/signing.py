"""Whose words these are: what peers tell each other, signed with the key of the certificate that bears their name.

mTLS admits all peers that the CA has signed, and no more: which of them speaks is not part of a zenoh message. So a
peer shows its certificate when it introduces itself, and signs that introduction, its progress and its models.
"""

from __future__ import annotations

import datetime
import json
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coterie.core.errors import CoterieError
from coterie.core.samples import ClientId

_HOW = ec.ECDSA(hashes.SHA256())
_LONGEST = 1 << 16


class Impostor(CoterieError):
    """A peer uses a name that is not its own."""


class Identity:
    """A peer's own key and certificate: what it signs with."""

    def __init__(self, name: ClientId, certificate: Path, key: Path) -> None:
        try:
            private = serialization.load_pem_private_key(key.read_bytes(), None)
            self.certificate = x509.load_pem_x509_certificate(certificate.read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise _unusable(certificate.parent, error) from error
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise CoterieError(f"The key {key} is not an elliptic-curve key; make one with `coterie certs`.")
        if _name_of(self.certificate) != name:
            raise CoterieError(
                f"{certificate} is the certificate of {_name_of(self.certificate)!r}, not of {name!r}; "
                "take the folder that `coterie certs` made for this --name."
            )
        self._private, self._shown = private, self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def sign(self, about: str, data: bytes) -> bytes:
        """A signature of these words; `about` says what they are the answer to."""
        return self._private.sign(_said(about, data), _HOW)

    def introduction(self, about: str, data: bytes) -> bytes:
        """The same together with the certificate, for those who have not seen it."""
        return json.dumps({"certificate": self._shown, "signature": self.sign(about, data).hex()}).encode()


class Acquaintances:
    """Whom the peers of one process have met: the keys of those whose certificates are of their CA."""

    def __init__(self, ca: Path) -> None:
        try:
            self._authorities = x509.load_pem_x509_certificates(ca.read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise _unusable(ca.parent, error) from error
        self._known: dict[ClientId, ec.EllipticCurvePublicKey] = {}

    def meet(self, name: ClientId, about: str, data: bytes, introduction: bytes) -> None:
        """Believe an introduction, and know this peer from now on."""
        if len(introduction) > _LONGEST:
            raise Impostor(f"it shows a certificate of {len(introduction)} bytes, more than {_LONGEST}")
        try:
            shown = json.loads(introduction)
            certificate = x509.load_pem_x509_certificate(shown["certificate"].encode())
            signature = bytes.fromhex(shown["signature"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Impostor(f"it shows no certificate ({error})") from error
        self._check(certificate)
        if _name_of(certificate) != name:
            raise Impostor(f"its certificate is that of {_name_of(certificate)!r}")
        key = certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise Impostor("its certificate has no elliptic-curve key")
        _verify(key, about, data, signature)
        self._known[name] = key

    def _check(self, certificate: x509.Certificate) -> None:
        now = datetime.datetime.now(datetime.UTC)
        early = (certificate.not_valid_before_utc - now).total_seconds()
        late = (now - certificate.not_valid_after_utc).total_seconds()
        if early > 0 or late > 0:
            by = f"for another {early:.0f} s" if early > 0 else f"since {late:.0f} s"
            raise Impostor(f"its certificate is not valid now ({by}, by our clock {now:%Y-%m-%d %H:%M} UTC)")
        for authority in self._authorities:
            try:
                certificate.verify_directly_issued_by(authority)
                return
            except (InvalidSignature, ValueError, TypeError):
                continue
        raise Impostor("its certificate is not of our CA")

    def check(self, name: ClientId, about: str, data: bytes, signature: bytes) -> None:
        """Raise unless the peer that we have met under this name has signed these words."""
        key = self._known.get(name)
        if key is None:
            raise Impostor("it has not introduced itself")
        _verify(key, about, data, signature)


def _unusable(folder: Path, error: Exception) -> CoterieError:
    return CoterieError(f"The certificates in {folder} cannot be used: {error}.")


def _name_of(certificate: x509.Certificate) -> str:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def _said(about: str, data: bytes) -> bytes:
    return b"coterie\0" + about.encode() + b"\0" + sha256(data).digest()


def _verify(key: ec.EllipticCurvePublicKey, about: str, data: bytes, signature: bytes) -> None:
    try:
        key.verify(signature, _said(about, data), _HOW)
    except InvalidSignature as error:
        raise Impostor("it has not signed what it says with the key of that name") from error
