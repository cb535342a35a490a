"""Secure aggregation between a server and its clients: who asks whom for what, so that the server sees sums alone.

Once a run, and again when a client was started anew: each sends the card of its key, which its certificate signs, gets
all of them, and makes an offer (see ``privacy/secure.py``). Then every sum takes two exchanges: masked vectors, and
shares, which bring an offer for the next sum along.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsgm.base.errors import FedSGMError
from fedsgm.base.files import write_atomically
from fedsgm.federation.answers import NOT_FINITE, WRONG_SHAPE, Reasons
from fedsgm.federation.client import State
from fedsgm.federation.panel import Followed, Panel
from fedsgm.federation.program import Program
from fedsgm.federation.protocol import NOTHING, FrameError, Kind, Request, form_of, unpack
from fedsgm.federation.signing import Identity
from fedsgm.privacy import packing, secure, shares
from fedsgm.privacy.clients import PrivateClients
from fedsgm.privacy.secure import Member, Offer, SecureError

UNIT = 2.0**-30  # of statistics, in fixed point
WIDE = 8  # bytes of one
SIGNED = "fedsgm secure aggregation"
FALSE = "it told or dealt shares that are false, and is asked for nothing more in this run"
_CARD = 2**17  # bytes of one that is read
_LENGTH = 4  # bytes of the length of what comes before a payload


def width(bits: int, clients: int) -> int:
    """Bytes of an entry of an update: so that the sum of all clients' has room."""
    return -(-(bits + (clients - 1).bit_length()) // 8)


def endorsed(identity: Identity, card: bytes) -> bytes:
    """A client's card, signed by the key of its site."""
    words = json.loads(card)
    signature = identity.sign(SIGNED, *_said(words))
    more = {"name": identity.name, "certificate": identity.certificate.hex(), "signature": signature.hex()}
    return json.dumps(words | more).encode()


def read_card(identity: Identity, card: Any, run: int, number: int) -> tuple[str, bytes]:
    """Whose it is, and its public key; :class:`SecureError` if the site that it names has not signed it for this."""
    try:
        said, name = _said(card), str(card["name"])
        secure.check_public(said[-1])  # or nobody who is told of it could make an offer
        if (card["run"], card["number"]) != (run, number):
            raise SecureError(f"the card of client {number} is for another run or place")
        certificate, signature = bytes.fromhex(card["certificate"]), bytes.fromhex(card["signature"])
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError):
        raise SecureError(f"the card of client {number} cannot be read") from None
    try:
        identity.check(name, certificate, signature, SIGNED, *said)
    except FedSGMError as error:
        raise SecureError(f"the key of client {number} is not that of {name}: {error}") from None
    return name, said[-1]


def _said(card: Any) -> tuple[bytes, bytes, bytes]:
    return (
        int(card["run"]).to_bytes(8, "little"),
        int(card["number"]).to_bytes(4, "little"),
        bytes.fromhex(card["public"]),
    )


class Secured:
    """A client's part: what it works out leaves it masked, or not at all.

    ``identity`` has the root that the others' certificates chain to and, unless somebody else endorses this client's
    card, its key. ``folder`` keeps which survivors it has told shares for, which a restart must not forget; ``fewest``
    is how many clients there must be at least by the site's own limits.
    """

    def __init__(self, identity: Identity, folder: Path, program: Program, server: str, fewest: int = 0) -> None:
        self._identity, self._path, self._program = identity, Path(folder) / "told", program
        self._server, self._fewest = server, fewest  # the server's certificate is no client's
        self._member: Member | None = None
        self._run = self._clients = 0
        self._last: tuple[bytes, bytes] | None = None  # the last masked answer, and what was asked
        self._stage, self._version = "", NOTHING  # of the sum that is masked: what, and at which version of the model

    def answer(self, asked: Request, state: State, work: Callable[[Request, State], bytes]) -> bytes:
        try:
            if asked.kind == Kind.KEYS:
                return self._card(state)
            if asked.kind == Kind.MEET:
                return self._meet(asked.payload, state)
            if self._member is None or self._run != state.run:
                raise FrameError("it was started anew and has no keys for this run yet")
            if asked.kind == Kind.TELL:
                return self._tell(asked.payload, state)
            return self._masked(asked, state, work)
        except SecureError as error:
            raise FrameError(str(error)) from None

    def _card(self, state: State) -> bytes:
        if self._member is None or (self._run, self._member.number) != (state.run, state.client):
            self._run, self._member = state.run, Member(state.run.to_bytes(8, "little"), state.client)
        words = {"run": state.run, "number": state.client, "public": self._member.public.hex()}
        card = json.dumps(words).encode()
        return card if self._identity.key is None else endorsed(self._identity, card)

    def _meet(self, payload: bytes, state: State) -> bytes:
        """Check everybody's card, and make an offer."""
        if self._member is None or self._run != state.run:
            raise FrameError("it was started anew and has no keys for this run yet")
        try:
            told = json.loads(payload)
            clients, cards = int(told["clients"]), {int(number): card for number, card in told["cards"]}
        except (ValueError, LookupError, TypeError):
            raise FrameError("the list of clients cannot be read") from None
        read = {number: read_card(self._identity, card, state.run, number) for number, card in cards.items()}
        names = {name for name, _ in read.values()}
        if len(names) < len(read) or self._server in names:
            raise FrameError("the list of clients has one of them twice, or the server among them")
        if len(read) < self._fewest:
            raise FrameError(f"this site takes part with at least {self._fewest} clients, but there are {len(read)}")
        self._member.meet(clients, {number: public for number, (_, public) in read.items()})
        self._clients = clients
        return packing.pack_offer(self._member.offer(), clients)

    def _masked(self, asked: Request, state: State, work: Callable[[Request, State], bytes]) -> bytes:
        """What is asked, as a masked vector after its form; the same again if the same is asked again."""
        assert self._member is not None
        same = hashlib.sha256(bytes([asked.kind]) + state.version.to_bytes(8, "little") + asked.payload).digest()
        if self._last is not None and self._last[0] == same:
            return self._last[1]
        opened, payload = _split(asked.payload)
        offers = packing.unpack_opened(opened)
        content, task = work(dataclasses.replace(asked, payload=payload), state), self._program.task.task
        if asked.kind == Kind.UPDATE:
            message = self._program.decode(content, self._program.algorithm.uplink)
            form, numbers, size = b"", message.codes, width(message.bits, self._clients)
            if isinstance(task, PrivateClients):  # whose noise clients share; what is on their disks has none
                numbers = shares.of_update(task, self._program.algorithm.uplink, numbers, self._clients)
        else:
            form, told, size = form_of(content), unpack(content), WIDE
            hides = isinstance(task, PrivateClients)
            numbers = shares.of_values(task, told, UNIT, self._clients) if hides else _fixed(told)
        words = self._member.mask(offers, packing.to_words(numbers, size, self._clients))
        self._stage, self._version = "update" if asked.kind == Kind.UPDATE else "values", state.version
        self._last = same, form + b"\0" + packing.pack_words(words, size)
        return self._last[1]

    def _tell(self, payload: bytes, state: State) -> bytes:
        """Shares for this list of survivors, and an offer; of one model the values or updates are in one sum only."""
        assert self._member is not None
        survivors = [int(number) for number in np.frombuffer(payload[: len(payload) // 4 * 4], "<u4")]
        shares = self._member.tell(survivors)
        whom, (version, before) = sorted(survivors), self._before(state.run)
        known = before if version == self._version else {}
        if self._version < version or known.get(self._stage, whom) != whom:
            raise FrameError(
                "it has told its shares for other survivors of this round, and two sums would show a client"
            )
        if self._stage not in known:
            words = {"run": state.run, "version": self._version, "told": known | {self._stage: whom}}
            write_atomically(self._path, json.dumps(words).encode(), private=True)
        return packing.pack_told(shares) + packing.pack_offer(self._member.offer(), self._clients)

    def _before(self, run: int) -> tuple[int, dict[str, list[int]]]:
        """The last version of the model that shares were told for, and for which survivors, of values and updates."""
        try:
            found = json.loads(self._path.read_bytes())
            return (int(found["version"]), dict(found["told"])) if found["run"] == run else (NOTHING, {})
        except FileNotFoundError:
            return NOTHING, {}
        except (ValueError, LookupError, TypeError):
            raise FrameError("its record of what it has told is damaged; begin another run") from None


def _fixed(tree: Any) -> np.ndarray:
    """Statistics in whole units, one after another."""
    leaves = [np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(tree)]
    values = np.concatenate(leaves) if leaves else np.zeros(0)
    if not np.isfinite(values).all():
        raise FrameError(NOT_FINITE)
    if np.abs(values).max(initial=0) >= 2.0**63 * UNIT:
        raise FrameError("a statistic is beyond what the fixed point of a sum has room for")
    return np.rint(values / UNIT).astype(np.int64)


def _split(payload: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(payload[:_LENGTH], "little")
    return payload[_LENGTH : _LENGTH + length], payload[_LENGTH + length :]


@dataclasses.dataclass(frozen=True)
class Sum:
    """Of the survivors' vectors: whole numbers, their form, and how many bytes each of the vectors had."""

    survivors: list[int]
    numbers: np.ndarray
    form: bytes
    size: int

    @property
    def mean(self) -> bytes:
        """The statistics of the mean client, packed as each client's would be."""
        values = self.numbers * UNIT / len(self.survivors)
        return self.form + b"\0" + values.astype(np.float32).tobytes()


class Sums:
    """The server's part: whose cards and offers there are, and a sum of what clients are asked for."""

    def __init__(self, panel: Panel, identity: Identity) -> None:
        self._panel, self._identity = panel, identity
        self.clients = len(panel.accounts)
        self.least = secure.threshold(self.clients)
        self._cards: dict[int, Any] = {}
        self._offers: dict[int, Offer] = {}
        self._false: set[int] = set()  # who told or dealt false shares: asked for nothing any more

    def ask(
        self, model: Followed, kind: Kind, who: Collection[int], payload: bytes, size: int
    ) -> tuple[Sum | None, Reasons]:
        """The sum over those of ``who`` who answer, None if these or their shares are too few; why others did not."""
        self._forget(self._false)
        reasons = self._agree(model, kind != Kind.UPDATE) | dict.fromkeys(self._false, FALSE)
        offers = {client: self._offers[client] for client in who if client in self._offers}
        reasons |= {client: reasons.get(client, "it has no keys yet") for client in who if client not in offers}
        if len(offers) < self.least:
            return None, reasons
        for client in offers:  # whatever comes of it, they are spent
            del self._offers[client]
        answers, why = self._panel.ask(
            model,
            dict.fromkeys(offers, kind),
            lambda client: _joined(packing.pack_opened(offers, client), payload),
            lambda _, content: _read_masked(content, size),
            _odd,
            lambda answered: len(answered) >= self.least,
        )
        self._forget(offers.keys() - answers.keys())
        if len(answers) < self.least:
            return None, reasons | why
        told, silent = self._tell(model, sorted(answers), list(offers))
        if len(told) < self.least:
            return None, reasons | why | silent
        form = next(iter(answers.values()))[0]
        masked = {client: words for client, (_, words) in answers.items()}
        self._false |= secure.false(offers, masked, told, self.clients)
        try:
            total = secure.unmasked(offers, masked, told, self.clients)
        except SecureError as error:
            self._false |= error.members
            return None, reasons | why | dict.fromkeys(answers, str(error)) | dict.fromkeys(self._false, FALSE)
        numbers = packing.from_words(total, size)
        return Sum(sorted(answers), numbers, form, len(form) + 1 + size * len(total)), reasons | why

    def _tell(
        self, model: Followed, survivors: Sequence[int], offers: Sequence[int]
    ) -> tuple[dict[int, Mapping[int, bytes]], Reasons]:
        """The shares of the survivors who answer; what they offer for the next sum is kept."""
        length = packing.sealed_size(self.clients)

        def read(_: Kind, content: bytes) -> tuple[dict[int, bytes], Offer]:
            shares, offer = content[: max(len(content) - length, 0)], content[-length:]
            return _refused(packing.unpack_told, shares, offers), _refused(packing.unpack_offer, offer, self.clients)

        answers, silent = self._panel.ask(
            *(model, dict.fromkeys(survivors, Kind.TELL), np.array(survivors, "<u4").tobytes(), read),
            odd=lambda _: {},
            enough=lambda answered: len(answered) >= self.least,
        )
        self._offers |= {client: offer for client, (_, offer) in answers.items()}
        self._forget(set(survivors) - answers.keys())
        return {client: shares for client, (shares, _) in answers.items()}, silent

    def _agree(self, model: Followed, greet: bool) -> Reasons:
        """See that everybody who is there has a card and an offer, for all who have a card."""
        reasons: Reasons = {}
        missing = [client for client in range(self.clients) if client not in {*self._cards, *self._false}]
        if missing and (greet or len(self._cards) < self.least):
            cards, reasons = self._ask(model, missing, Kind.KEYS, b"", lambda content: json.loads(content[:_CARD]))
            for client, card in cards.items():
                try:
                    read_card(self._identity, card, self._panel.run, client)
                    self._cards[client] = card
                    self._offers.clear()  # made for others
                except SecureError as error:
                    reasons[client] = str(error)
        without = [client for client in self._cards if client not in self._offers]
        if without and len(self._cards) >= self.least:
            told = json.dumps({"clients": self.clients, "cards": sorted(self._cards.items())}).encode()
            offers, why = self._ask(
                *(model, without, Kind.MEET, told), lambda content: packing.unpack_offer(content, self.clients)
            )
            self._offers |= offers
            self._forget(why)
            reasons |= why
        return reasons

    def _ask(
        self, model: Followed, who: Sequence[int], kind: Kind, payload: bytes, read: Callable[[bytes], Any]
    ) -> tuple[dict[int, Any], Reasons]:
        return self._panel.ask(
            *(model, dict.fromkeys(who, kind), payload, lambda _, content: _refused(read, content)),
            odd=lambda _: {},
            enough=lambda _: True,
        )

    def _forget(self, clients: Collection[int]) -> None:
        """Their keys may be gone with their processes: they are asked for their cards again."""
        for client in clients:
            self._cards.pop(client, None)
            self._offers.pop(client, None)


def _joined(opened: bytes, payload: bytes) -> bytes:
    return len(opened).to_bytes(_LENGTH, "little") + opened + payload


def _refused(read: Callable[..., Any], *given: Any) -> Any:
    """What is read, or a :class:`FrameError`."""
    try:
        return read(*given)
    except (SecureError, ValueError, RecursionError):
        raise FrameError(WRONG_SHAPE) from None


def _read_masked(content: bytes, size: int) -> tuple[bytes, np.ndarray]:
    form, _, words = content.partition(b"\0")
    vector = _refused(packing.unpack_words, words, size)
    if form:
        leaves = jax.tree.leaves(_refused(lambda: unpack(form + b"\0" + bytes(4 * len(vector)))))
        if any(leaf.dtype != np.float32 for leaf in leaves):
            raise FrameError(WRONG_SHAPE)
    return form, vector


def _odd(answers: Mapping[int, tuple[bytes, np.ndarray]]) -> Reasons:
    """Those of another form or length than most."""
    forms = {client: (form, len(words)) for client, (form, words) in answers.items()}
    usual = max(forms.values(), key=list(forms.values()).count, default=None)
    return {client: WRONG_SHAPE for client, form in forms.items() if form != usual}
