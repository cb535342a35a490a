"""Who is who in a federation over Flower: the SuperLink by a certificate, a node by its key."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CA, CERTIFICATE, KEY = "ca.crt", "server.pem", "server.key"
_VALID = datetime.timedelta(days=365)
_EARLIER = datetime.timedelta(minutes=5)  # for clocks that are behind
_PEM = serialization.Encoding.PEM


def certify(folder: Path, host: str) -> None:
    """An authority's certificate, ``ca.crt``, and the SuperLink's for this host, ``server.pem`` with ``server.key``.

    The authority's own key is not kept: nobody can make another certificate of it.
    """
    authority, own = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    root = _certificate("fedsgm", authority, authority, (constraints, True), (usage, True))
    try:
        address: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        address = x509.DNSName(host)
    leaf = _certificate(host, own, authority, (x509.SubjectAlternativeName([address]), False))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CA).write_bytes(root.public_bytes(_PEM))
    (folder / CERTIFICATE).write_bytes(leaf.public_bytes(_PEM))
    _write_key(folder / KEY, own, serialization.PrivateFormat.PKCS8)


def make_key(path: Path) -> None:
    """A node's key, as ``ssh-keygen -t ecdsa -b 384`` makes one: ``path``, and the public part in ``path``.pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_key(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    authority: ec.EllipticCurvePrivateKey,
    *extensions: tuple[Any, bool],
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, "fedsgm"))
    made = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )
    for extension, critical in extensions:
        made = made.add_extension(extension, critical=critical)
    return made.sign(authority, hashes.SHA256())


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    data = key.private_bytes(_PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
