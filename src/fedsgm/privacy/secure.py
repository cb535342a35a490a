"""Sums in which nobody is seen: masks that cancel, and shares for those who drop out (Bonawitz et al., 2017).

Every sum has its own masks. A :class:`Member` makes an *offer* for one: the public key that its masks with the others
come from, and of the two seeds behind its masks a share for each of the others, sealed. When the server has chosen
whose offers belong together, each masks its vector by them; when it has said whose vectors came, each tells one share
of everybody: of those who came, of the seed of their own mask; of those who did not, of the key of their masks with
others. As many members as the threshold says give a seed back, fewer say nothing about it. An offer has a hash of each
share, which hides it as it is random: a share that is not the one that was dealt counts for nothing. Keys agree by
X25519, seeds grow by HKDF and ChaCha20, shares are sealed by ChaCha20-Poly1305 and made by PyCryptodome's Shamir.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedsgm.base.errors import FedSGMError

FEWEST = 3  # clients of a run: of two, each could take its own from the sum
SEED = 16  # bytes of a seed and of a share of one


class SecureError(FedSGMError):
    """What would show more than a sum, or is not what the others said; ``members`` are false for certain."""

    def __init__(self, why: str, *members: int) -> None:
        super().__init__(why)
        self.members = set(members)


def threshold(clients: int) -> int:
    """How many must be in a sum, and how many shares give a seed: more than two thirds of the clients.

    A member tells one of two seeds of another. For the server to learn both of one, twice the threshold would have to
    be at most the clients and those of them who collude with it: less than a third of them cannot.
    """
    return 2 * clients // 3 + 1


@dataclasses.dataclass(frozen=True)
class Offer:
    """One member's for one sum: its public key, what its own seed must hash to, a sealed pair of shares for each.

    ``marks`` has what each one's pair of shares, its own too, must hash to.
    """

    serial: int
    public: bytes
    check: bytes
    sealed: Mapping[int, bytes]
    marks: Mapping[int, bytes]


@dataclasses.dataclass(frozen=True)
class Opened:
    """What one member is shown of another's offer."""

    serial: int
    public: bytes
    sealed: bytes


@dataclasses.dataclass
class _Made:
    """A member's own offer, with what it hides."""

    serial: int
    own: bytes
    pair: bytes
    shares: tuple[bytes, bytes]  # its own ones: of its mask, of its key

    @property
    def key(self) -> X25519PrivateKey:
        return _key(self.pair)


@dataclasses.dataclass
class _Told:
    """A sum that this member has masked a vector for: the two shares of everybody, and who was in it once it told."""

    shares: dict[int, tuple[bytes, bytes]]
    survivors: frozenset[int] | None = None


class Member:
    """One client's part in the sums of a run; ``number`` is its place among ``clients``."""

    def __init__(self, run: bytes, number: int) -> None:
        self._run, self.number = run, number
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()
        self._others: dict[int, bytes] = {}
        self._keys: dict[int, tuple[bytes, bytes]] = {}
        self._seen: dict[int, int] = {}  # the serial of the last offer of each: none is opened twice
        self._serial = 0
        self._clients = 0
        self._made: _Made | None = None
        self._told: _Told | None = None

    def meet(self, clients: int, publics: Mapping[int, bytes]) -> None:
        """Know the others by their public keys, which whoever calls has seen signed."""
        if clients < FEWEST or len(publics) < threshold(clients):
            raise SecureError(f"{len(publics)} of {clients} clients are too few for a sum that shows nobody")
        if publics.get(self.number) != self.public or not all(0 <= number < clients for number in publics):
            raise SecureError("the list of clients is not the one that this client is in")
        others = {number: public for number, public in publics.items() if number != self.number}
        for number, public in others.items():
            if self._others.get(number) != public:
                secret = _agreed(self._private, public)
                self._keys[number] = (
                    _derived(secret, b"seal", self._run, _pair(self.number, number)),
                    _derived(secret, b"seal", self._run, _pair(number, self.number)),
                )
                self._seen[number] = 0
        self._others, self._clients, self._made = others, clients, None

    def offer(self) -> Offer:
        """One for the next sum; the one before is of no use any more."""
        self._serial += 1
        own, pair = secrets.token_bytes(SEED), secrets.token_bytes(SEED)
        most = threshold(self._clients)
        split = [Shamir.split(most, self._clients, seed, ssss=False) for seed in (own, pair)]
        shares = [(of_own, of_pair) for (_, of_own), (_, of_pair) in zip(*split, strict=True)]
        made = self._made = _Made(self._serial, own, pair, shares[self.number])
        public = made.key.public_key().public_bytes_raw()
        sealed = {
            number: ChaCha20Poly1305(self._keys[number][0]).encrypt(
                _nonce(self._serial), b"".join(shares[number]), self._about(self._serial, public)
            )
            for number in self._others
        }
        marks = {
            number: b"".join(_mark(self.number, self._serial, number, share) for share in both)
            for number, both in enumerate(shares)
        }
        return Offer(self._serial, public, _check(own), sealed, marks)

    def mask(self, opened: Mapping[int, Opened], vector: np.ndarray) -> np.ndarray:
        """The vector, of unsigned whole numbers, with the masks of this sum; the offers in it are spent."""
        made = self._made
        mine = opened.get(self.number)
        if made is None or mine is None or mine.serial != made.serial:
            raise SecureError("the sum is not one that this client has made an offer for")
        if len(opened) < threshold(self._clients):
            raise SecureError(
                f"a sum of {len(opened)} clients shows too much of each; {threshold(self._clients)} must be"
            )
        shares = {self.number: made.shares}
        for number, offer in opened.items():
            if number != self.number:
                shares[number] = self._open(number, offer)
        masked = vector + stream(made.own, b"own", vector)
        for number, offer in opened.items():
            if number != self.number:
                mask = _mask_of(made.key, self.number, made.serial, number, offer, vector)
                masked = masked + mask if self.number < number else masked - mask
                self._seen[number] = offer.serial
        self._made, self._told = None, _Told(shares)
        return masked

    def tell(self, survivors: Collection[int]) -> dict[int, bytes]:
        """Of everybody in the last sum one share; for one list of survivors, and no other after it."""
        told, who = self._told, frozenset(survivors)
        if told is None:
            raise SecureError("there is no sum that this client has masked a vector for")
        if told.survivors is not None and told.survivors != who:
            raise SecureError("this client has told its shares for another list of survivors of this sum")
        if not who <= told.shares.keys() or self.number not in who or len(who) < threshold(self._clients):
            raise SecureError(f"a sum of these {len(who)} clients is not one that this client takes part in")
        told.survivors = who
        return {number: own if number in who else pair for number, (own, pair) in told.shares.items()}

    def _open(self, number: int, offer: Opened) -> tuple[bytes, bytes]:
        if number not in self._others or offer.serial <= self._seen[number]:
            raise SecureError(f"the offer of client {number} was used before, or it is not known")
        try:
            both = ChaCha20Poly1305(self._keys[number][1]).decrypt(
                _nonce(offer.serial), offer.sealed, self._about(offer.serial, offer.public)
            )
        except InvalidTag:
            raise SecureError(
                f"the offer is not that of client {number}: somebody put another key in its place"
            ) from None
        return both[:SEED], both[SEED:]

    def _about(self, serial: int, public: bytes) -> bytes:
        """What a seal is about, so that shares of one offer cannot stand beside the key of another."""
        return b"fedsgm offer" + self._run + serial.to_bytes(8, "little") + public


def unmasked(
    offers: Mapping[int, Offer], masked: Mapping[int, np.ndarray], told: Mapping[int, Mapping[int, bytes]], clients: int
) -> np.ndarray:
    """The sum of the vectors in ``masked``, of all who made ``offers`` for it; ``told`` has the shares of some."""
    total = np.sum(np.stack(list(masked.values())), axis=0, dtype=next(iter(masked.values())).dtype)
    for number, offer in offers.items():
        dealt = _dealt(offer, number, told, masked)
        if len(dealt) < threshold(clients):
            why = f"{len(dealt)} shares that client {number} has dealt were told, but {threshold(clients)} are needed"
            others = ", ".join(map(str, sorted(told.keys() - dealt.keys())))
            raise SecureError(why + (f": it is false, or client {others}, who told others" if others else ""))
        seed = combined(dealt, clients)
        if number in masked:
            if _check(seed) != offer.check:
                raise SecureError(f"the shares that client {number} has dealt are not of its seed", number)
            total = total - stream(seed, b"own", total)
            continue
        key = _key(seed)
        if key.public_key().public_bytes_raw() != offer.public:
            raise SecureError(f"the shares that client {number} has dealt are not of its key", number)
        for other in masked:
            mask = _mask_of(key, number, offer.serial, other, offers[other], total)
            total = total - mask if other < number else total + mask
    return total


def false(
    offers: Mapping[int, Offer], came: Collection[int], told: Mapping[int, Mapping[int, bytes]], clients: int
) -> set[int]:
    """Who told or dealt shares that are false, for certain: as long as the false ones are no more than may be missing.

    Where a share is not what was dealt, one of two is false. So a client that contradicts more others than may be
    false, or itself, is; who contradicts fewer may be either.
    """
    most = max(clients - threshold(clients), 1)
    against: dict[int, set[int]] = {number: set() for number in offers}
    for dealer, offer in offers.items():
        for teller in told.keys() - _dealt(offer, dealer, told, came).keys():
            against[teller].add(dealer)
            against[dealer].add(teller)
    return {number for number, others in against.items() if number in others or len(others) > most}


def _dealt(
    offer: Offer, dealer: int, told: Mapping[int, Mapping[int, bytes]], came: Collection[int]
) -> dict[int, bytes]:
    """The shares that are what was dealt: of the seed of a mask where the dealer's vector came, of a key otherwise."""
    at = 0 if dealer in came else SEED
    each = {teller: shares[dealer] for teller, shares in told.items()}
    return {
        teller: share
        for teller, share in each.items()
        if _mark(dealer, offer.serial, teller, share) == offer.marks[teller][at : at + SEED]
    }


def combined(shares: Mapping[int, bytes], clients: int) -> bytes:
    """The seed that these shares, by their holders' numbers, are of; more than are needed change nothing."""
    needed = threshold(clients)
    if len(shares) < needed:
        raise SecureError(f"{len(shares)} shares were told, but {needed} are needed")
    return Shamir.combine([(number + 1, shares[number]) for number in sorted(shares)[:needed]], ssss=False)


def stream(seed: bytes, purpose: bytes, like: np.ndarray) -> np.ndarray:
    """As many random numbers as there are in ``like``, of its type, that follow from the seed."""
    cipher = Cipher(ChaCha20(_derived(seed, purpose), bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(like.nbytes)), like.dtype.newbyteorder("<")).astype(like.dtype)


def _mask_of(key: X25519PrivateKey, number: int, serial: int, other: int, offer: Any, like: np.ndarray) -> np.ndarray:
    """What two members have in common for one sum."""
    ends = sorted([(number, serial), (other, offer.serial)])
    about = b"".join(place.to_bytes(4, "little") + at.to_bytes(8, "little") for place, at in ends)
    return stream(_agreed(key, offer.public), b"pair" + about, like)


def _agreed(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise SecureError("a public key is none that keys can be agreed on with") from None


def check_public(public: bytes) -> None:
    """See that keys can be agreed on with it, or raise :class:`SecureError`."""
    _agreed(X25519PrivateKey.generate(), public)


def _key(seed: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(_derived(seed, b"key"))


def _derived(secret: bytes, purpose: bytes, *more: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, None, b"fedsgm " + b"|".join([purpose, *more])).derive(secret)


def _check(seed: bytes) -> bytes:
    return hashlib.sha256(b"fedsgm own seed" + seed).digest()[:SEED]


def _mark(dealer: int, serial: int, holder: int, share: bytes) -> bytes:
    about = b"fedsgm share" + _pair(dealer, holder) + serial.to_bytes(8, "little")
    return hashlib.sha256(about + share).digest()[:SEED]


def _pair(sender: int, receiver: int) -> bytes:
    return sender.to_bytes(4, "little") + receiver.to_bytes(4, "little")


def _nonce(serial: int) -> bytes:
    """Every key seals one message for each serial."""
    return serial.to_bytes(12, "little")
