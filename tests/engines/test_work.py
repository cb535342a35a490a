"""Which runs are compiled lightly: a matter of their sizes, so that no interruption changes a bit."""

import numpy as np
import pytest

import fedsgm as fs
from fedsgm.engines import device, work
from support.runs import EVERYTHING, assert_identical


@pytest.mark.parametrize(
    ("settings", "m", "examples"),
    [
        ({"local_steps": 5}, 8, 80 + 3 * 400),
        ({"local_steps": 5, "participants": 2}, 2, 20 + 3 * 100),
        ({"participants": 2, "query": "all"}, 2, 80 + 3 * 20),
        ({"batch_size": 2, "constraint_batch_size": 4}, 8, 8 * 4 + 3 * 8 * 2),
    ],
)
@pytest.mark.parametrize(("every", "evaluations"), [(1, 64 + 4), (16, 4 + 4), (0, 4)])
def test_a_run_is_small_by_its_sizes(settings, m, examples, every, evaluations, monkeypatch):
    """Eight clients of ten examples, of seven numbers each; three seeds, 64 rounds, eleven parameters."""
    clients = fs.Clients.from_list([{"x": np.zeros((10, 2, 3), np.float32), "y": np.zeros(10, np.float32)}] * 8)
    sizes = {"rounds": 64, "seeds": 3, "evaluate_every": every}
    total = 3 * ((64 * examples + evaluations * 80) * (4096 + 7 * 11) / 4096 + 64 * (m * 11 / 16 + 256))
    monkeypatch.setattr(work, "_SMALL", total)
    assert work.small(fs.FedSGM(0.1, **settings), clients, 11, **sizes)
    assert not work.small(fs.FedSGM(0.1, **settings), clients, 12, **sizes)
    with work.alike(2):
        assert not work.small(fs.FedSGM(0.1, **settings), clients, 11, **sizes)
        monkeypatch.setattr(work, "_SMALL", 2 * total)
        assert work.small(fs.FedSGM(0.1, **settings), clients, 11, **sizes)


def test_what_has_no_examples_is_not_known_to_be_small():
    assert not work.small(fs.FedSGM(0.1), range(3), 1, rounds=1, seeds=1, evaluate_every=0)


@pytest.mark.parametrize("border", [0, 2**62])
def test_a_killed_run_goes_on_to_the_same_bits_however_it_was_compiled(
    border, tmp_path, clients, problem, params, monkeypatch
):
    """Rounds, seeds and sizes choose; what is left to do, the chunk and where the memories are do not."""
    monkeypatch.setattr(work, "_SMALL", border)
    algorithm = fs.FedSGM(**EVERYTHING)

    def run(**more):
        return fs.simulate(algorithm, problem, clients, params, rounds=40, seeds=2, progress=False, **more)

    def killed(_, done, **__):
        if done >= 20:
            raise KeyboardInterrupt

    whole = run()
    with monkeypatch.context() as soon:
        soon.setattr("fedsgm.engines.simulate.Progress.update", killed)
        with pytest.raises(KeyboardInterrupt):
            run(checkpoint=fs.Checkpoint(tmp_path, 10))
    assert_identical(run(checkpoint=fs.Checkpoint(tmp_path, 10, resume=True)), whole)
    assert_identical(run(offload=True), whole)


def test_both_ways_end_at_the_same_model(clients, problem, params, monkeypatch):
    ways, found, real = [], [], device.advance

    def advance(program, *given):
        ways.append(program.light)
        return real(program, *given)

    monkeypatch.setattr(device, "advance", advance)
    for border in (0, 2**62):
        monkeypatch.setattr(work, "_SMALL", border)
        found.append(fs.simulate(fs.FedSGM(0.1), problem, clients, params, rounds=16, progress=False))
    assert ways == [False, True]
    np.testing.assert_allclose(found[0].last["w"], found[1].last["w"], rtol=1e-5, atol=1e-6)
