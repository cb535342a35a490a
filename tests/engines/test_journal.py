"""A history that is appended to: what counts of it, what does not, and what a damaged one says."""

import numpy as np
import pytest

from fedsgm import CheckpointError
from fedsgm.engines.checkpoint import Journal


def write(path, rounds=6):
    journal = Journal(rounds)
    journal.keep_in(path)
    lengths = [0]
    for t in range(rounds):
        journal.record(t, {"weight": np.float32(t / 7), "who": np.array([t, t + 1], np.int32)})
        if t:
            journal.record(t - 1, {"objective": np.float32(-t)})
        journal.flush()
        lengths.append(journal.length)
    return journal, lengths


def read(path, length, rounds=6):
    journal = Journal(rounds)
    journal.keep_in(path, length)
    return journal


def test_columns_come_back_bit_for_bit_up_to_the_length_that_counts(tmp_path):
    whole, lengths = write(tmp_path / "history")
    back = read(tmp_path / "history", lengths[-1]).columns
    assert back.keys() == whole.columns.keys()
    for name, column in whole.columns.items():
        assert column.dtype == back[name].dtype
        assert column.tobytes() == back[name].tobytes()
    half = read(tmp_path / "history", lengths[3]).columns
    np.testing.assert_array_equal(half["weight"][:3], whole.columns["weight"][:3])
    assert np.isnan(half["weight"][3:]).all()
    np.testing.assert_array_equal(half["objective"], [-1, -2, *[np.nan] * 4])
    np.testing.assert_array_equal(half["who"][3:], 0)


def test_what_is_beyond_is_cut_off_and_written_anew(tmp_path):
    path = tmp_path / "history"
    whole, lengths = write(path)
    data = path.read_bytes()
    path.write_bytes(data[: lengths[3]] + b"half a record")
    journal = read(path, lengths[3])
    assert path.stat().st_size == lengths[3]
    for t in range(3, 6):
        journal.record(t, {"weight": np.float32(t / 7), "who": np.array([t, t + 1], np.int32)})
        journal.record(t - 1, {"objective": np.float32(-t)})
        journal.flush()
    assert path.read_bytes() == data
    assert journal.columns["objective"].tobytes() == whole.columns["objective"].tobytes()


def test_each_round_costs_the_same(tmp_path):
    """Its own record and nothing of the earlier ones."""
    _, lengths = write(tmp_path / "history", rounds=50)
    steps = np.diff(lengths)[1:]
    assert (steps == steps[0]).all()


@pytest.mark.parametrize("place", range(0, 400, 37))
def test_an_altered_file_says_so(tmp_path, place):
    path = tmp_path / "history"
    _, lengths = write(path)
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"history is (altered|cut short)"):
        read(path, lengths[-1])


def test_a_shorter_file_says_so(tmp_path):
    path = tmp_path / "history"
    _, lengths = write(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"cut short: it has {lengths[-1] - 1} bytes of {lengths[-1]}"):
        read(path, lengths[-1])


def test_nothing_is_written_until_it_is_kept_somewhere(tmp_path):
    journal = Journal(2)
    journal.record(0, {"weight": np.float32(1)})
    journal.flush()
    assert journal.length == 0
    assert list(tmp_path.iterdir()) == []
