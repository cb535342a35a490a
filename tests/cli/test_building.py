"""What the flags come to: compressors by their spelling, and that every rule there is can be had."""

import re

import jax
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base.describe import describe
from fedsgm.cli import building, flags
from fedsgm.core import wire
from fedsgm.methods import IPPConEx
from support.commands import RUN, TINY, assert_one_error, call, run
from support.flags import D

OWN = {
    "beta": 2.0,
    "ceiling": 0.3,
    "adapt": 3.0,
    "rho": 4.0,
    "dual_step": 5.0,
    "augment": 6.0,
    "proximal": 7.0,
    "primal_scale": 8.0,
    "dual_scale": 9.0,
    "offset": 10.0,
    "inner_steps": 11,
    "margin": "0.5",
}
RULES = {
    "hard": fs.Hard(margin=0.5),
    "soft": fs.Soft(beta=2.0, ceiling=0.3, margin=0.5),
    "adaptive": fs.Adaptive(step=3.0, margin=0.5),
    "penalty": fs.Penalty(rho=4.0),
    "primal-dual": fs.PrimalDual(step=5.0, augment=6.0),
    "unconstrained": fs.Unconstrained(),
    "ipp-conex": IPPConEx(proximal=7.0, primal_scale=8.0, dual_scale=9.0, offset=10.0, inner_steps=11, local_steps=5),
}


@pytest.mark.parametrize("rule", flags.RuleName)
def test_every_rule_gets_its_own_flags(rule):
    """All of them, each as what it is called; a rule that is added must be added here."""
    made = building.algorithm(flags.RunFlags(rule=rule, **OWN), {"w": np.zeros(3)})
    assert (made if rule == "ipp-conex" else made.rule) == RULES[rule]
    assert {name for names in flags.OWN.values() for name in names} == set(OWN)
    assert RULES.keys() == flags.OWN.keys() == set(flags.RuleName)


COMPRESSORS = {
    "none": ({"is": "Identity"}, 8 + 4 * D),
    "topk:0.1": ({"is": "TopK", "fraction": 0.1, "count": None}, 9 + 2 + 4 * 3),
    "topk:count=4": ({"is": "TopK", "fraction": None, "count": 4}, 9 + 3 + 4 * 4),
    "randk:0.2": ({"is": "RandK", "fraction": 0.2, "count": None}, 9 + 3 + 4 * 6),
    "randk:count=5": ({"is": "RandK", "fraction": None, "count": 5}, 9 + 3 + 4 * 5),
    "sharedk:0.2": (
        {"is": "SharedK", "fraction": 0.2, "count": None, "reach": 16.0, "bits": 16, "history": 0.0},
        9 + 1 + 8 + 2 * 6,
    ),
    "sharedk:count=6:0.25": (
        {"is": "SharedK", "fraction": None, "count": 6, "reach": 16.0, "bits": 16, "history": 0.25},
        9 + 1 + 8 + 2 * 6,
    ),
    "float16": ({"is": "Quantize", "format": "float16", "block": None}, 9 + 2 * D + 4),
    "float8": ({"is": "Quantize", "format": "float8", "block": None}, 9 + D + 4),
    "float4": ({"is": "Quantize", "format": "float4", "block": None}, 9 + 16 + 4),
    "int4:8": ({"is": "Quantize", "format": "int4", "block": 8}, 9 + 16 + 4 * 4),
    "int2": ({"is": "Quantize", "format": "int2", "block": None}, 9 + 8 + 4),
    "int8:64": ({"is": "Quantize", "format": "int8", "block": 64}, 9 + D + 4),
    "sign": ({"is": "ScaledSign"}, 9 + 4 + 4),
    "natural": ({"is": "Natural"}, 9 + 35),
    "layers:topk:0.1": (
        {"is": "Layerwise", "compressor": {"is": "TopK", "fraction": 0.1, "count": None}, "sizes": [1, 30]},
        8 + (3 + 1 + 4) + (3 + 2 + 4 * 3),
    ),
    "layers:int4:16": (
        {"is": "Layerwise", "compressor": {"is": "Quantize", "format": "int4", "block": 16}, "sizes": [1, 30]},
        8 + (3 + 1 + 4) + (3 + 15 + 8),
    ),
}
"""Spelling: what it is, and the bytes of one message of 31 entries, by hand: header, indices, codes, floats."""


@pytest.mark.parametrize("spelling", COMPRESSORS)
def test_compressors(spelling):
    """What a spelling means, and that it costs what it should."""
    compressor = building.parse_compressor(spelling, {"w": np.zeros(30, np.float32), "b": np.zeros((), np.float32)})
    assert describe(compressor) == COMPRESSORS[spelling][0]
    message = compressor.compress(jax.numpy.arange(D, dtype=np.float32), jax.random.key(0))
    assert len(wire.encode(message, D)) == COMPRESSORS[spelling][1]


@pytest.mark.parametrize(
    ("up", "down"),
    [("none", "layers:topk:0.1"), ("randk:0.2", "float8"), ("int4:8", "natural"), ("sign", "none")],
)
def test_uplink_and_downlink(up, down, tmp_path):
    """A participant also sends one float and receives three; indices that are all small take a byte less."""
    done = run(tmp_path / "run", "--uplink", up, "--downlink", down)
    assert done.algorithm["uplink"] == COMPRESSORS[up][0]
    assert done.algorithm["downlink"] == COMPRESSORS[down][0]
    assert (done.toml["uplink"], done.toml["downlink"]) == (up, down)
    less_up, less_down = (int("topk" in link or "randk" in link) for link in (up, down))
    assert 0 <= 2 * (4 + COMPRESSORS[up][1]) - done.history["bytes_up"].min() <= 2 * less_up
    assert done.history["bytes_up"].max() == 2 * (4 + COMPRESSORS[up][1])
    assert 0 <= 2 * 12 + 4 * COMPRESSORS[down][1] - done.history["bytes_down"].min() <= 4 * less_down
    assert done.history["bytes_down"].max() == 2 * 12 + 4 * COMPRESSORS[down][1]
    assert np.isfinite(done.vector).all()
    assert done.vector.any()


def test_every_compressor_in_the_help_is_tried():
    """The kinds that the help names, whatever their numbers."""
    named = set(re.findall(r"\b(none|topk|randk|float\d+|int\d|sign|natural|layers)\b", flags.COMPRESSOR))
    tried = {part for spelling in COMPRESSORS for part in re.split("[:=]", spelling)}
    assert named <= tried


def test_compressors_may_be_spelled_in_capitals():
    params = {"w": np.zeros(3)}
    assert building.parse_compressor(" TopK:0.5 ", params) == building.parse_compressor("topk:0.5", params)


WRONG_COMPRESSORS = {
    "topk": ("'topk'", "topk:0.1"),
    "topk:abc": ("'topk:abc'", "topk:0.1"),
    "topk:1.5": ("fraction=1.5", "at most 1"),
    "topk:0": ("fraction=0.0", "above 0"),
    "topk:nan": ("fraction=nan",),
    "topk:count=0": ("count=0", "1 or more"),
    "topk:count=x": ("'topk:count=x'", "topk:count=3"),
    "topk:size=3": ("'topk:size=3'", "topk:count=3"),
    "randk": ("'randk'", "randk:0.1"),
    "float7": ("'float7'", "float16", "float8", "float4"),
    "int9": ("'int9'", "int2 to int8"),
    "int4:0": ("block=0", "1 or more"),
    "int4:big": ("'int4:big'", "int4:64"),
    "nonsense": ("'nonsense'", "topk:0.1", "sign", "natural"),
    "sign:3": ("'sign:3'", "sign"),
    "none:1": ("'none:1'", "none"),
    "layers:": ("'layers:'", "topk:0.1"),
    "layers:nonsense": ("nonsense", "topk:0.1"),
    "": ("''", "topk:0.1"),
}


@pytest.mark.parametrize("link", ["--uplink", "--downlink"])
@pytest.mark.parametrize("spelling", WRONG_COMPRESSORS)
def test_wrong_compressors(spelling, link, tmp_path):
    called = call(*RUN, *TINY, link, spelling, "--out", tmp_path / "run")
    assert_one_error(called, 2, *map(re.escape, WRONG_COMPRESSORS[spelling]))


@pytest.mark.parametrize(
    ("text", "margin"),
    [("0", 0.0), ("0.25", 0.25), (" 1e-3 ", 1e-3), ("se:2", fs.StandardErrors(2.0)), ("se:0", fs.StandardErrors(0.0))],
)
def test_margins(text, margin):
    assert building.parse_margin(text) == margin


@pytest.mark.parametrize("text", ["", "x", "-1", "se:", "se:-1", "se:x", "1se:1", "inf", "nan", "se:inf", "se:se:1"])
def test_wrong_margins(text):
    with pytest.raises(fs.SettingError, match=r"^--margin .*: write a number, 0 or more, such as 0.01, or se:1.645"):
        building.parse_margin(text)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, []),
        ({"rule": flags.RuleName.soft, "beta": 10.0}, []),
        ({"rule": flags.RuleName.hard, "beta": 10.0}, ["--beta is of no effect with --rule hard: it is for soft"]),
        ({"rule": flags.RuleName.adaptive, "dual_step": 1.0}, ["--dual-step is of no effect with --rule adaptive"]),
        ({"unheard": flags.UnheardName.left_out}, ["--unheard is of no effect without --query memory"]),
        ({"unheard": flags.UnheardName.left_out, "query": flags.QueryName.memory}, []),
    ],
)
def test_what_a_rule_ignores_is_told(given, told):
    notes = flags.ignored(flags.RunFlags(**given), {})
    assert len(notes) == len(told)
    assert all(note.startswith(start) for note, start in zip(notes, told, strict=True))
