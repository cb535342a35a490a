"""Sums in which nobody is seen: exact, whoever drops out, and nothing but noise without enough of the members."""

import dataclasses
import itertools
import secrets

import numpy as np
import pytest
from scipy import stats

from fedsgm.privacy import packing, secure
from fedsgm.privacy.secure import Member, SecureError, threshold

RUN = b"a run"
N = 5


def meet(clients=N, there=None):
    """Members of a run that know each other, and an offer of each."""
    members = {j: Member(RUN, j) for j in (range(clients) if there is None else there)}
    publics = {j: member.public for j, member in members.items()}
    for member in members.values():
        member.meet(clients, publics)
    return members, {j: member.offer() for j, member in members.items()}


def opened(offers, reader):
    return packing.unpack_opened(packing.pack_opened(offers, reader))


def sum_of(members, offers, vectors, *, came=None, tell=None, clients=N):
    """What the server makes of those who came, with the shares of those who tell."""
    came = list(members) if came is None else came
    masked = {j: members[j].mask(opened(offers, j), vectors[j]) for j in came}
    told = {j: members[j].tell(came) for j in (came if tell is None else tell)}
    told = {j: packing.unpack_told(packing.pack_told(shares), list(offers)) for j, shares in told.items()}
    return secure.unmasked(offers, masked, told, clients)


def numbers(rng, clients=N, width=4, size=50):
    """Signed whole numbers as large as they may be."""
    limit = 2 ** (8 * width - 1) // clients
    return [rng.integers(-limit + 1, limit, size) for _ in range(clients)]


@pytest.mark.parametrize("width", [1, 3, 4, 8])
def test_the_sum_is_exact(width):
    rng = np.random.default_rng(width)
    members, offers = meet()
    vectors = numbers(rng, width=width)
    words = [packing.to_words(vector, width, N) for vector in vectors]
    masked = {j: members[j].mask(opened(offers, j), words[j]) for j in members}
    sent = {j: packing.unpack_words(packing.pack_words(y, width), width) for j, y in masked.items()}
    told = {j: members[j].tell(range(N)) for j in members}
    total = packing.from_words(secure.unmasked(offers, sent, told, N), width)
    np.testing.assert_array_equal(total, np.sum(vectors, axis=0))


@pytest.mark.parametrize("lost", range(N))
def test_drop_outs_at_every_step(lost):
    """Before its offer, after it, after its masked vector: the sum of four or five is that of the vectors that came."""
    rng, others = np.random.default_rng(lost), [j for j in range(N) if j != lost]
    vectors = [packing.to_words(vector, 4, N) for vector in numbers(rng)]
    expected = np.sum([vectors[j] for j in others], axis=0, dtype=np.uint32)
    members, offers = meet(there=others)
    np.testing.assert_array_equal(sum_of(members, offers, vectors), expected)
    members, offers = meet()
    np.testing.assert_array_equal(sum_of(members, offers, vectors, came=others), expected)
    members, offers = meet()
    np.testing.assert_array_equal(
        sum_of(members, offers, vectors, tell=others), np.sum(vectors, axis=0, dtype=np.uint32)
    )


def test_below_the_threshold_there_is_no_sum():
    vectors = [np.zeros(3, np.uint32)] * N
    assert [threshold(n) for n in (3, 4, 5, 6, 10, 100)] == [3, 3, 4, 5, 7, 67]
    with pytest.raises(SecureError, match="3 of 5 clients are too few"):
        meet(there=(0, 1, 2))
    with pytest.raises(SecureError, match="2 of 2 clients are too few"):
        meet(clients=2)
    members, offers = meet()
    few = {j: offers[j] for j in (0, 1, 2)}
    with pytest.raises(SecureError, match="a sum of 3 clients shows too much"):
        members[0].mask(opened(few, 0), vectors[0])
    with pytest.raises(SecureError, match="these 3 clients"):
        sum_of(members, offers, vectors, came=[0, 1, 2])
    members, offers = meet()
    with pytest.raises(SecureError, match=r"3 shares that client 0 has dealt were told, but 4 are needed$"):
        sum_of(members, offers, vectors, tell=[0, 1, 2])


def test_a_member_answers_one_list_of_survivors():
    """Two sums that differ by one client would show that client."""
    members, offers = meet()
    for j in members:
        members[j].mask(opened(offers, j), np.zeros(3, np.uint32))
    first = members[0].tell(range(N))
    assert members[0].tell(range(N)) == first
    with pytest.raises(SecureError, match="another list of survivors"):
        members[0].tell([0, 1, 2, 3])
    assert first != members[1].tell([0, 1, 2, 3])
    with pytest.raises(SecureError, match="not one that this client takes part in"):
        members[2].tell([0, 1, 3, 4])


def test_masks_are_used_once():
    """The difference of two vectors under the same masks would be seen."""
    members, offers = meet()
    vector = np.zeros(3, np.uint32)
    members[0].mask(opened(offers, 0), vector)
    with pytest.raises(SecureError, match="made an offer for"):
        members[0].mask(opened(offers, 0), vector + 1)
    again = offers | {0: members[0].offer()}
    with pytest.raises(SecureError, match="client 1 was used before"):
        members[0].mask(opened(again, 0), vector)


def test_a_key_in_another_s_place_is_caught():
    """The server knows no key that seals: another public key, or another member's shares, do not open."""
    members, offers = meet()
    theirs = opened(offers, 0)
    forged = Member(RUN, 1)
    forged.meet(N, {j: forged.public if j == 1 else members[j].public for j in members})
    for wrong in (
        secure.Opened(theirs[1].serial, forged.public, theirs[1].sealed),
        secure.Opened(theirs[1].serial + 1, theirs[1].public, theirs[1].sealed),
        secure.Opened(theirs[1].serial, theirs[1].public, theirs[2].sealed),
        opened({1: forged.offer()}, 0)[1],
    ):
        with pytest.raises(SecureError, match="is not that of client 1: somebody put another key"):
            members[0].mask(theirs | {1: wrong}, np.zeros(3, np.uint32))
    with pytest.raises(SecureError, match="not the one that this client is in"):
        members[0].meet(N, dict.fromkeys(range(N), forged.public))


def lie(told, teller, about):
    return {**told, teller: told[teller] | {dealer: secrets.token_bytes(secure.SEED) for dealer in about}}


def test_a_false_share_counts_for_nothing():
    """With one more than are needed the sum is exact; else it is said who contradict each other."""
    rng = np.random.default_rng(0)
    vectors = [packing.to_words(vector, 4, N) for vector in numbers(rng)]
    for came, wrong in itertools.product((range(N), range(4)), ([2], [1], [0, 3], range(N))):
        members, offers = meet()
        offers = {j: packing.unpack_offer(packing.pack_offer(offer, N), N) for j, offer in offers.items()}
        masked = {j: members[j].mask(opened(offers, j), vectors[j]) for j in came}
        told = lie({j: members[j].tell(came) for j in came}, 1, wrong)
        certain = secure.false(offers, masked, told, N)
        assert certain == (set() if wrong == [2] else {1}), "of two that contradict each other it may be either"
        if len(came) == N:
            total = secure.unmasked(offers, masked, told, N)
            np.testing.assert_array_equal(total, np.sum(vectors, axis=0, dtype=np.uint32))
            continue
        about = wrong[0]
        with pytest.raises(SecureError, match=f"client {about} has dealt were .*: it is false, or client 1, who told"):
            secure.unmasked(offers, masked, told, N)


@pytest.mark.parametrize("came", [range(N), [0, 1, 3, 4]])
def test_shares_of_another_seed_are_their_dealer_s(monkeypatch, came):
    """All are what was dealt, so that no teller can be false."""
    members, offers = meet()
    real = secure.Shamir.split
    monkeypatch.setattr(secure.Shamir, "split", lambda *most, ssss: real(*most[:2], bytes(secure.SEED), ssss=ssss))
    offers[2] = members[2].offer()
    monkeypatch.undo()
    vectors = [np.zeros(3, np.uint32)] * N
    with pytest.raises(SecureError, match="the shares that client 2 has dealt are not of its") as found:
        sum_of(members, offers, vectors, came=came)
    assert found.value.members == {2}


@pytest.mark.parametrize("clients", [3, 4, 5, 7, 10])
def test_who_is_true_is_never_named(clients):
    """Whatever those who are false tell and deal, as long as they are as many as the sum can do without, or one."""
    rng, most = np.random.default_rng(clients), max(clients - threshold(clients), 1)
    named = []
    for _ in range(20):
        members, offers = meet(clients)
        wrong = rng.choice(clients, most, replace=False).tolist()
        came = sorted({*range(clients)} - set(wrong[: clients - threshold(clients)] if rng.random() < 0.3 else ()))
        for dealer in wrong:
            to = rng.choice(clients, rng.integers(clients + 1), replace=False)
            marks = {j: secrets.token_bytes(32) if j in to else mark for j, mark in offers[dealer].marks.items()}
            offers[dealer] = dataclasses.replace(offers[dealer], marks=marks)
        for j in came:
            members[j].mask(opened(offers, j), np.zeros(3, np.uint32))
        told = {j: members[j].tell(came) for j in came}
        for teller in set(wrong) & set(came):
            told = lie(told, teller, rng.choice(clients, rng.integers(clients + 1), replace=False).tolist())
        certain = secure.false(offers, came, told, clients)
        assert certain <= set(wrong)
        named.append(len(certain))
    assert max(named) == most, "they are found, too"


def test_bytes_of_others_are_refused():
    members, offers = meet()
    data = packing.pack_offer(offers[1], N)
    assert packing.unpack_offer(data, N).sealed[0] == offers[1].sealed[0]
    for call in (
        lambda: packing.unpack_offer(data[:-1], N),
        lambda: packing.unpack_opened(packing.pack_opened(offers, 0)[:-1]),
        lambda: packing.unpack_opened(packing.pack_opened({1: offers[1]}, 0) * 2),
        lambda: packing.unpack_told(bytes(20), [1, 2]),
        lambda: packing.unpack_told(bytes(20), [1]),
        lambda: packing.unpack_words(bytes(4), 3),
        lambda: packing.to_words(np.array([2**31]), 4, N),
        lambda: members[0].meet(N, {j: members[j].public if j == 0 else bytes(32) for j in range(N)}),
    ):
        with pytest.raises(SecureError):
            call()


def uniform(words):
    """The probability of bytes as unequal as these, were they uniform (chi-square)."""
    seen = np.bincount(words.astype("<u4").view(np.uint8), minlength=256)
    return stats.chisquare(seen).pvalue


def without_own(monkeypatch):
    """No masks of one's own."""
    real = secure.stream
    monkeypatch.setattr(secure, "stream", lambda s, p, like: np.zeros_like(like) if p == b"own" else real(s, p, like))


def without_pairs(monkeypatch):
    real = secure.stream
    monkeypatch.setattr(secure, "stream", lambda s, p, like: real(s, p, like) if p == b"own" else np.zeros_like(like))


SIZE = 20_000
LEVEL = 1e-6


def server_s_view(came=range(N), tell=()):
    """All that the server has, of vectors of zeros: masked vectors, with what it can take off them by shares told."""
    members, offers = meet()
    zeros = np.zeros(SIZE, np.uint32)
    masked = {j: members[j].mask(opened(offers, j), zeros) for j in came}
    told = {j: members[j].tell(list(came)) for j in tell}
    return members, offers, masked, told


class TestUniformity:
    """Of everything below the threshold the server learns nothing: every sum of some vectors is uniform noise."""

    def found(self, masked):
        """How likely the sum of each choice of the masked vectors is, were it uniform."""
        some = [c for r in range(1, len(masked) + 1) for c in itertools.combinations(masked, r)]
        return {c: uniform(np.sum([masked[j] for j in c], axis=0, dtype=np.uint32)) for c in some}

    def test_every_subset_of_masked_vectors_is_uniform(self):
        """All of them together too, before anybody has told a share: their own masks are still on."""
        masked = server_s_view()[2]
        found = self.found(masked)
        assert len(found) == 2**N - 1
        assert min(found.values()) > LEVEL, found

    def test_with_all_own_masks_known_only_the_whole_sum_is_not(self, monkeypatch):
        """What the pair masks do: with own masks off, every sum but the whole one is still noise."""
        without_own(monkeypatch)
        found = self.found(server_s_view()[2])
        assert found.pop(tuple(range(N))) < LEVEL, "a mask that is left out is seen"
        assert min(found.values()) > LEVEL, found

    def test_without_pair_masks_a_vector_is_seen_once_its_own_mask_is_off(self, monkeypatch):
        """The test fails where masks are left out: with neither of them on, zeros are seen."""
        without_pairs(monkeypatch)
        _, _, masked, told = server_s_view(tell=range(4))
        own = secure.combined({j: told[j][0] for j in told}, N)
        assert uniform(masked[0]) > LEVEL, "its own mask is on"
        assert uniform(masked[0] - secure.stream(own, b"own", masked[0])) < LEVEL

    def test_one_who_came_late_stays_hidden(self):
        """The key of one who did not come is told; its late vector still has its own mask."""
        members, offers, masked, told = server_s_view(came=range(4), tell=range(4))
        late = members[4].mask(opened(offers, 4), np.zeros(SIZE, np.uint32))
        total = secure.unmasked(offers, masked, told, N)
        assert (total == 0).all()
        key = secure._key(secure.combined({j: told[j][4] for j in told}, N))
        pairs = [secure._mask_of(key, 4, offers[4].serial, j, offers[j], late) for j in range(4)]
        bare = late + np.sum(pairs, axis=0, dtype=np.uint32)  # 4 took them all off
        assert uniform(bare) > LEVEL
        own = members[4]._told.shares[4][0]
        assert own not in {share for shares in told.values() for share in shares.values()}

    def test_shares_below_the_threshold_are_uniform(self):
        """Three shares of one seed, over many offers of the same seed: no byte of them is likelier than another."""
        rows = []
        for _ in range(4000):
            shares = secure.Shamir.split(threshold(N), N, bytes(secure.SEED), ssss=False)
            rows.append([np.frombuffer(share, np.uint8) for _, share in shares[: threshold(N) - 1]])
        rows = np.array(rows)
        assert uniform(rows.reshape(-1).view("<u4")) > LEVEL
        assert uniform(np.bitwise_xor.reduce(rows, axis=1).reshape(-1).view("<u4")) > LEVEL
