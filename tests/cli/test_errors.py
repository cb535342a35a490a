"""Every mistake on the command line gets one clear line and an exit code, and nothing is written."""

import re

import pytest

import fedsgm
from fedsgm.cli.flags import RuleName
from support.commands import RUN, TINY, assert_one_error, call, run, write

WRONG_FLAGS = {
    "--stepsize 0.1": ("No such option", "--stepsize", "--step-size"),
    "--rule fast": ("--rule", "fast", *RuleName),
    "--rounds many": ("--rounds", "integer"),
    "--rounds 2.5": ("--rounds", "integer"),
    "--rounds 2147483648": ("rounds=2147483648", "at most 2147483647"),
    "--rounds 1000000000000000000000000": ("rounds=1000000000000000000000000", "at most"),
    "--seeds 2147483648": ("seeds=2147483648", "at most 65536"),
    "--seed 9223372036854775808": ("seed=9223372036854775808", "at most 4294967295"),
    "--split 4294967296": ("split_seed=4294967296", "at most 4294967295"),
    "--clients 2147483648": ("clients=2147483648", "at most"),
    "--participants 2147483648": ("participants=2147483648", "at most"),
    "--local-steps 2147483648": ("local_steps=2147483648", "at most"),
    "--batch-size 2147483648": ("batch_size=2147483648", "at most"),
    "--constraint-batch-size 2147483648": ("constraint_batch_size=2147483648", "at most"),
    "--evaluate-every 2147483648": ("evaluate_every=2147483648", "at most"),
    "--checkpoint saved --checkpoint-every 2147483648": ("every=2147483648", "at most"),
    "--rule ipp-conex --inner-steps 2147483648": ("inner_steps=2147483648", "at most"),
    "--centralized --rounds 2147483647": ("rounds=10737418235", "at most"),
    "--uplink topk:count=2147483648": ("count=2147483648", "at most"),
    "--uplink int8:2147483648": ("block=2147483648", "at most"),
    "--rounds 0": ("rounds=0", "1 or more"),
    "--seeds 0": ("seeds=0", "1 or more"),
    "--seed -1": ("seed=-1", "0 or more"),
    "--seed 4294967296": ("seed=4294967296",),
    "--split -1": ("split", "-1", "0 or more"),
    "--step-size -0.1": ("step_size=-0.1", "above 0"),
    "--step-size nan": ("step_size=nan", "finite"),
    "--local-steps 0": ("local_steps=0", "1 or more"),
    "--participants 5": ("participants=5", "4 clients"),
    "--participants -1": ("participants=-1", "whole number"),
    "--clients 457": ("clients=457", "456 examples"),
    "--clients 200": ("client", "no example", "minority"),
    "--clients 0": ("clients=0", "1 or more"),
    "--tolerance -1": ("tolerance=-1.0",),
    "--bound nan": ("bound=nan", "finite"),
    "--beta 0": ("beta=0.0", "above 0"),
    "--rule penalty --rho -1": ("rho=-1.0",),
    "--anneal 0": ("--anneal 0", "above 0 and at most 1"),
    "--rule adaptive --adapt 0": ("step=0.0", "above 0"),
    "--rule primal-dual --dual-step 0": ("step=0.0", "above 0"),
    "--rule primal-dual --augment -1": ("augment=-1.0", "0 or more"),
    "--rule ipp-conex --proximal 0": ("proximal=0.0", "above 0"),
    "--rule ipp-conex --primal-scale nan": ("primal_scale=nan", "finite"),
    "--rule ipp-conex --dual-scale -1": ("dual_scale=-1.0", "above 0"),
    "--rule ipp-conex --offset -1": ("offset=-1.0", "0 or more"),
    "--rule ipp-conex --inner-steps 0": ("inner_steps=0", "1 or more"),
    "--rule ipp-conex --inner-steps 2.5": ("--inner-steps", "integer"),
    "--rule ipp-conex --local-steps 0": ("local_steps=0", "1 or more"),
    "--rule ipp-conex --batch-size -2": ("batch_size=-2",),
    "--rule ipp-conex --tolerance -1": ("tolerance=-1.0",),
    "--rule conex": ("--rule", "conex", "ipp-conex"),
    "--centralized --local-steps 0": ("local_steps=0", "1 or more"),
    "--centralized yes": ("unexpected extra argument", "yes"),
    "--batch-size -2": ("batch_size=-2",),
    "--constraint-batch-size -2": ("constraint_batch_size=-2",),
    "--evaluate-every -1": ("evaluate_every=-1", "0 or more"),
    "--resume": ("--resume needs --checkpoint",),
    "--checkpoint saved --checkpoint-every 0": ("every=0", "1 or more"),
    "--radius 1 --box 1": ("--radius and --box", "one of them"),
    "--radius 0": ("--radius 0", "above 0"),
    "--radius nan": ("--radius nan", "above 0"),
    "--box -2": ("--box -2", "above 0"),
    "--rounds": ("--rounds", "requires an argument"),
    "extra": ("unexpected extra argument", "extra"),
}


@pytest.mark.parametrize("flags", WRONG_FLAGS)
def test_wrong_flags(flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    called = call(*RUN, *TINY, *flags.split())
    assert_one_error(called, 2, *map(re.escape, WRONG_FLAGS[flags]))
    assert called.out == ""
    assert list(tmp_path.iterdir()) == [], "nothing was written"


def test_a_wrong_rule_is_told_every_right_one():
    assert set(RuleName) <= set(WRONG_FLAGS["--rule fast"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run neyman-person", ("No such command", "neyman-person")),
        ("rum", ("No such command", "rum")),
        ("show", ("Missing argument", "RUN")),
        ("--verbose", ("No such option", "--verbose")),
    ],
)
def test_wrong_commands(arguments, words):
    assert_one_error(call(*arguments.split()), 2, *words)


def test_an_out_that_is_a_file_is_seen_before_the_run(tmp_path, monkeypatch):
    """Not after an hour's work that then has nowhere to go."""
    taken = write(tmp_path / "taken", "mine")
    monkeypatch.setattr(fedsgm, "simulate", lambda *_, **__: pytest.fail("the run had begun"))
    for out in (taken, taken / "below"):
        called = call(*RUN, *TINY, "--out", out)
        assert_one_error(called, 2, "--out", re.escape(str(taken)), "file")
        assert called.out == ""
    assert taken.read_text() == "mine"


def test_a_checkpoint_folder_that_is_a_file(tmp_path):
    taken = write(tmp_path / "taken", "mine")
    called = call(*RUN, *TINY, "--checkpoint", taken, "--out", tmp_path / "run")
    assert_one_error(called, 2, "--checkpoint", re.escape(str(taken)), "a folder is needed there")
    assert called.out == ""
    assert not (tmp_path / "run").exists()
    assert taken.read_text() == "mine"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The checkpoints of a finished tiny run."""
    folder = tmp_path_factory.mktemp("checkpoints")
    run(folder / "run", "--checkpoint", folder / "saved")
    return folder / "saved"


class TestCheckpointsThatDoNotFit:
    def refused(self, saved, tmp_path, *flags):
        before = {path: path.read_bytes() for path in saved.iterdir()}
        called = call(*RUN, *TINY, "--checkpoint", saved, "--out", tmp_path / "run", *flags)
        assert not (tmp_path / "run").exists()
        assert {path: path.read_bytes() for path in saved.iterdir()} == before
        return called

    def test_one_is_there_and_resume_was_not_asked_for(self, saved, tmp_path):
        called = self.refused(saved, tmp_path)
        assert_one_error(called, 1, re.escape(str(saved)), "round 5", "resume", "empty folder")

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            ("--step-size 0.1", ("step_size", r"0\.3\b", r"0\.1\b")),
            ("--rule hard", ("rule", "Soft", "Hard")),
            ("--bound 0.1", ("bound", r"0\.05", r"0\.1\b")),
            ("--seeds 2", ("seeds", r"\[0\]", r"\[0, 1\]")),
            ("--clients 5", ("clients", "4", "5")),
            ("--split 1", ("data",)),
        ],
    )
    def test_other_settings(self, flags, words, saved, tmp_path):
        """The message is about what differs, and short enough to see it."""
        called = self.refused(saved, tmp_path, "--resume", *flags.split())
        assert_one_error(called, 1, *words, "same settings")
        assert len(called.err.replace(str(saved), "")) < 250

    def test_fewer_rounds_than_it_has_done(self, saved, tmp_path):
        called = self.refused(saved, tmp_path, "--resume", "--rounds", "4")
        assert_one_error(called, 1, "round 5", "4 rounds")


def test_an_interrupted_run_ends_quietly(tmp_path, monkeypatch):
    """Ctrl-C is no crash: no traceback, and the exit code that a shell expects."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fedsgm, "simulate", interrupt)
    called = call(*RUN, *TINY, "--out", tmp_path / "run")
    assert called.code == 130
    assert (called.out, called.err) == ("", "")
