"""Certificates and keys for a trial: one CA, a server, and a folder for every client to be handed out to it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.core.errors import CoterieError
from coterie.core.files import write_whole
from coterie.deploy.boundary import check_name

_DAYS = 365
_CA = "coterie trial CA"
_NAMES = ".names"


def make_certificates(folder: Path, names: Sequence[str], hosts: Sequence[str], gateway: str = "") -> list[Path]:
    """A CA and a server's certificate, where there are none yet, and keys for these clients; returned is what is new.

    In `folder`: ca.pem, ca.key, server.pem, server.key, keys/NAME.pub (what the server knows of its clients), and
    clients/NAME/ with ca.pem, node.key (for Flower), peer.pem and peer.key (for zenoh). The clients of a gateway have
    one key together, that of the gateway; keys/GATEWAY.names lists them.
    """
    hosted = [check_name(name, "--names:") for name in names] if gateway else []
    if gateway and not hosted:
        raise CoterieError("Say with --names which clients the gateway answers for.")
    if gateway:
        names = [check_name(gateway, "--gateway")]
    for name in names:
        check_name(name, "--names:")
        if (folder / "clients" / name).exists():
            raise CoterieError(f"{folder / 'clients' / name} is there already; choose another name, or remove it.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "ca.pem").is_file():
        raise CoterieError(f"{folder} holds other things than certificates; choose a folder that is new or empty.")
    before = {path for path in folder.rglob("*") if path.is_file()}
    try:
        ca, ca_key = _authority(folder)
        if not (folder / "server.pem").is_file():
            key = _key()
            _write(folder / "server.pem", _signed("coterie server", key, ca, ca_key, hosts))
            _write(folder / "server.key", _private(key))
        for name in names:
            _client(folder, name, ca, ca_key, hosts)
        if gateway:
            _write(folder / "keys" / f"{gateway}{_NAMES}", "\n".join(hosted).encode())
    except OSError as error:
        raise CoterieError(f"Cannot write certificates to {folder}: {error.strerror or error}.") from error
    return sorted(path for path in folder.rglob("*") if path.is_file() and path not in before)


def gateways_in(folder: Path) -> dict[str, tuple[str, ...]]:
    """The gateways among the keys that a server knows, and the clients of each."""
    try:
        listed = {file.stem: file.read_text().split("\n") for file in sorted((folder / "keys").glob(f"*{_NAMES}"))}
    except (OSError, UnicodeDecodeError) as error:
        raise CoterieError(f"The names in {folder / 'keys'} cannot be read ({error}).") from error
    return {key: tuple(check_name(name, f"{key}{_NAMES}:") for name in names if name) for key, names in listed.items()}


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    file, key_file = folder / "ca.pem", folder / "ca.key"
    if file.is_file():
        try:
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
            certificate = x509.load_pem_x509_certificate(file.read_bytes())
        except (OSError, ValueError) as error:
            raise CoterieError(f"The CA in {folder} cannot be used ({error}); choose another folder.") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CoterieError(f"The CA in {folder} is not one of `coterie certs`; choose another folder.")
        return certificate, key
    key = _key()
    name = _name(_CA)
    certificate = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(file, _pem(certificate))
    _write(key_file, _private(key))
    return certificate, key


def _client(
    folder: Path, name: str, ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, hosts: Sequence[str]
) -> None:
    own = folder / "clients" / name
    node, peer = ec.generate_private_key(ec.SECP384R1()), _key()
    encoding, ssh = serialization.Encoding, serialization.PrivateFormat.OpenSSH
    _write(own / "ca.pem", _pem(ca))
    _write(own / "node.key", node.private_bytes(encoding.PEM, ssh, serialization.NoEncryption()))
    public = node.public_key().public_bytes(encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(folder / "keys" / f"{name}.pub", public)
    _write(own / "peer.pem", _signed(name, peer, ca, ca_key, hosts))
    _write(own / "peer.key", _private(peer))


def _signed(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
) -> bytes:
    """A certificate for a server or a peer at these hosts, and for a peer as a client of others."""
    certificate = (
        _builder(_name(name), ca.subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return _pem(certificate)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: Path, data: bytes) -> None:
    """Private keys are for their owner alone, from the first moment on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data, private=path.suffix == ".key")
