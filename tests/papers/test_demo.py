"""The items of ``make demo`` and ``make demo-plain``: the commands run what was declared."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedweave.cli.options import experiments_of
from fedweave.papers.beyond import demo
from fedweave.papers.common.record import Record
from fedweave.runs.plain import to_plain

MAKEFILE = Path(__file__).parents[2] / "Makefile"


def command_of(target):
    """Return methods, options, and settings of the comparison of a target of the Makefile."""
    text = MAKEFILE.read_text()
    variables = dict(re.findall(r"^([A-Z]+) *:= (.*)$", text, re.MULTILINE))
    (line,) = re.findall(rf"^{target}:.*\n\t.*\n\t\$\(BIN\)/fedweave compare (.*)$", text, re.MULTILINE)
    words = shlex.split(re.sub(r"\$\(([A-Z]+)\)", lambda m: variables[m[1]], line))
    methods = words[: next(i for i, word in enumerate(words) if word.startswith("--"))]
    pairs = list(zip(words[len(methods) :: 2], words[len(methods) + 1 :: 2], strict=True))
    options = {name[2:].replace("-", "_"): value for name, value in pairs if name != "--set"}
    return methods, options, [value for name, value in pairs if name == "--set"]


@pytest.mark.parametrize("name", demo.SETTINGS)
def test_the_command_of_the_makefile_runs_what_was_declared(name):
    methods, options, sets = command_of(name)
    assert options.pop("out") == name
    (study,) = (s for s in demo.STUDIES if s.name == f"beyond/{name}")
    assert int(options["seeds"]) == study.seeds["laptop"]
    typed, _ = experiments_of(methods, options, sets)
    declared = study.arms("laptop")
    assert methods == list(declared)
    for given, arm in zip(typed, declared.values(), strict=True):
        assert given.rate == arm.rate
        one, other = (
            to_plain(replace(e, lr=1.0, method=replace(e.method, lr=None), data="mnist5k")) for e in (given, arm)
        )
        assert one == other


def test_measures_by_hand():
    rounds = {"class_accuracy": np.array([[0.1, 0.9], [0.7, np.nan]])}
    record = Record(rounds, values={"bytes_up": 1_500_000, "bytes_down": 500_000})
    assert demo.worst_class(record) == 0.7
    assert demo.megabytes(record) == 2.0


def test_the_slow_half_holds_the_first_five_digits():
    data = demo.samples("smoke")
    shares = demo.SETTINGS["demo"].partition.split(data, np.random.default_rng(0))
    held = [set(data.y[own].tolist()) for own in shares.train]
    assert set.union(*held[: demo.CLIENTS // 2]) == set(range(5))
    assert set.union(*held[demo.CLIENTS // 2 :]) == set(range(5, 10))
