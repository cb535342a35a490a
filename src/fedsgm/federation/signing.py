"""Who said it: certificates that chain to a federation's root, and signatures by their keys.

A signature is over a purpose and parts, each with its length: what was signed for one purpose, run or client is of no
use for another. The keys are those of the sites' kits, RSA or of an elliptic curve, and Ed25519 where they are made
here.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from fedsgm.base.errors import FedSGMError, SettingError

ED25519 = 64  # bytes of a signature of it
_LONGEST = 2**14  # bytes of a certificate with those that it chains by
_CHAIN = 4  # certificates between a site and the root
_DAYS = datetime.timedelta(days=365)
_EARLIER = datetime.timedelta(minutes=5)  # for clocks that are behind
_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


class Unsigned(FedSGMError):
    """What does not bear the signature that it must."""


def digest(purpose: str, *parts: bytes) -> bytes:
    """What is signed: no two lists of parts have the same."""
    return hashlib.sha256(b"".join(len(p).to_bytes(8, "little") + p for p in (purpose.encode(), *parts))).digest()


@dataclasses.dataclass(frozen=True, repr=False)
class Identity:
    """A site of a federation: its name, its key, the certificate that says so, and the root that all sites trust.

    ``certificate`` is in PEM, followed by those that it chains to the root by, if there are any.
    """

    name: str
    certificate: bytes
    key: Any
    root: x509.Certificate

    @classmethod
    def read(cls, key: Path, certificate: Path, root: Path) -> Identity:
        """From files in PEM, as a kit has them; they must belong together. The certificate has the name."""
        try:
            private = serialization.load_pem_private_key(key.read_bytes(), password=None)
            own, anchor = certificate.read_bytes(), x509.load_pem_x509_certificate(root.read_bytes())
            name = str(_names(x509.load_pem_x509_certificate(own))[0])
        except (OSError, ValueError, TypeError, LookupError, UnsupportedAlgorithm) as error:
            raise SettingError(
                f"the keys in {key.parent} cannot be used ({type(error).__name__}); get this site's kit anew"
            ) from None
        identity = cls(name, own, private, anchor)
        try:
            identity.check(name, own, identity.sign("own", b""), "own", b"")
        except Unsigned as error:
            raise SettingError(f"the certificate {certificate} is not usable: {error}") from None
        return identity

    @classmethod
    def knowing(cls, name: str, root: bytes) -> Identity:
        """One without a key, which can check what others have signed."""
        return cls(name, b"", None, x509.load_pem_x509_certificate(root))

    def sign(self, purpose: str, *parts: bytes) -> bytes:
        what = digest(purpose, *parts)
        if isinstance(self.key, rsa.RSAPrivateKey):
            return self.key.sign(what, _PSS, hashes.SHA256())
        if isinstance(self.key, ec.EllipticCurvePrivateKey):
            return self.key.sign(what, ec.ECDSA(hashes.SHA256()))
        return self.key.sign(what)

    def check(self, name: str, certificate: bytes, signature: bytes, purpose: str, *parts: bytes) -> None:
        """See that the site ``name`` of this federation has signed it, or raise :class:`Unsigned`."""
        key, what = self._key_of(name, certificate), digest(purpose, *parts)
        try:
            if isinstance(key, rsa.RSAPublicKey):
                key.verify(signature, what, _PSS, hashes.SHA256())
            elif isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(signature, what, ec.ECDSA(hashes.SHA256()))
            elif isinstance(key, Ed25519PublicKey):
                key.verify(signature, what)
            else:
                raise Unsigned("the certificate has a key of a kind that is not used here")
        except InvalidSignature:
            raise Unsigned(f"the signature is not that of {name}") from None

    def _key_of(self, name: str, certificate: bytes) -> Any:
        """The public key of a certificate, if it is this site's and chains to the root today."""
        try:
            chain = x509.load_pem_x509_certificates(certificate[: _LONGEST + 1])
            if len(certificate) > _LONGEST or len(chain) > _CHAIN:
                raise Unsigned("the certificate is too long")
            now = datetime.datetime.now(datetime.UTC)
            for each, issuer in zip(chain, (*chain[1:], self.root), strict=True):
                each.verify_directly_issued_by(issuer)
                if not each.not_valid_before_utc - _EARLIER <= now <= each.not_valid_after_utc:
                    raise Unsigned("the certificate is not valid today")
            if not all(map(_may_issue, chain[1:])):
                raise Unsigned("the certificate was made by a site that may make none")
            named = _names(chain[0])
            key = chain[0].public_key()
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound):
            raise Unsigned("the certificate does not chain to this federation's root") from None
        if named != [name] or _may_issue(chain[0]):
            raise Unsigned(f"the certificate is not that of {name}")
        return key


def _names(certificate: x509.Certificate) -> list[str | bytes]:
    return [attribute.value for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def _may_issue(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def make_identities(names: Iterable[str]) -> dict[str, Identity]:
    """A federation's in memory: a root whose key is not kept, and a certificate for each name."""
    authority = Ed25519PrivateKey.generate()
    root = _certificate("fedsgm", authority, authority, ca=True)
    identities = {}
    for name in names:
        key = Ed25519PrivateKey.generate()
        own = _certificate(name, key, authority, ca=False).public_bytes(serialization.Encoding.PEM)
        identities[name] = Identity(name, own, key, root)
    return identities


def _certificate(name: str, key: Any, authority: Any, *, ca: bool) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, "fedsgm"))
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + _DAYS)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .sign(authority, None if isinstance(authority, Ed25519PrivateKey) else hashes.SHA256())
    )
