"""Own partitions and systems that hand in nonsense are named in one sentence, before anything is written."""

from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
from fedweave.core.roles import System
from fedweave.data.deal import Shares
from fedweave.data.partition import Partition


def shares(*parts):
    return Shares(train=[np.asarray(p) for p in parts], test=[np.zeros(0, int) for _ in parts])


WRONG_SHARES = {
    "list": ([[0, 1], [2]], "must return Shares"),
    "few": (shares([0, 1]), "must deal to 2 clients. It dealt to 1"),
    "many": (shares([0], [1], [2]), "must deal to 2 clients. It dealt to 3"),
    "empty": (shares([0, 1], np.zeros(0, int)), "at least one sample. Client 1 has none"),
    "fractions": (shares([0, 1], [2.0]), "an array of whole numbers. Client 1"),
    "matrix": (shares([[0, 1]], [2]), "an array of whole numbers. Client 0"),
    "foreign": (shares([0], [10**6]), "must deal samples 0 … 1437. Client 1 has 1000000"),
    "negative": (shares([0], [-1]), "Client 1 has -1"),
    "overlap": (shares([0, 1], [1, 2]), "must deal each sample once. Client 1"),
    "twice": (shares([0, 0], [2]), "must deal each sample once. Client 0"),
}


@pytest.mark.parametrize(("given", "why"), WRONG_SHARES.values(), ids=WRONG_SHARES)
def test_a_wrong_partition_is_named_before_anything_is_written(given, why, tmp_path):
    @fw.settings
    class Own(Partition):
        clients: int = 2

        def split(self, data, rng):
            return given

    experiment = fw.Experiment(method=fw.methods.fedavg(2), data="digits", partition=Own(), workers=1)
    with pytest.raises(fw.BadInput, match=r"Own\.split ") as error:
        fw.run(experiment, tmp_path / "run")
    assert why in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


WRONG_COLUMNS = {
    "latency nan": ("latency", np.full(6, np.nan), "'latency' finite and not negative. Got nan"),
    "latency backwards": ("latency", np.array([1, 1, -2.0, 1, 1, 1]), "Got -2.0"),
    "latency infinite": ("latency", np.full(6, np.inf), "Got inf"),
    "loss 1.5": ("loss_rate", np.full(6, 1.5), "'loss_rate' from 0 to 1. Got 1.5"),
    "no steps": ("steps", np.zeros(6, int), "'steps' from 1 to 1000000. Got 0"),
    "half steps": ("steps", np.full(6, 2.5), "'steps' as 6 whole numbers. Got float64(6,)"),
    "length": ("weight", np.ones(5) / 5, "'weight' as 6 numbers. Got float64(5,)"),
    "negative weight": ("weight", np.array([-1, 1, 1, 0, 0, 0.0]), "'weight' from 0 to 1. Got -1.0"),
    "nothing": ("latency", None, "'latency' as 6 numbers or whole numbers. Got None"),
    "list": ("available", [True] * 6, "'available' as 6 booleans. Got [True"),
    "numbers": ("available", np.ones(6), "'available' as 6 booleans. Got float64(6,)"),
}


@pytest.mark.parametrize("late", [1, 2])
@pytest.mark.parametrize(("column", "values", "why"), WRONG_COLUMNS.values(), ids=WRONG_COLUMNS)
def test_a_wrong_system_is_named_when_it_hands_in(column, values, why, late, tiny):
    @fw.settings
    class Own(System):
        def population(self, base, round, seed):
            return replace(base, **{column: values}) if round == late else base

    with pytest.raises(fw.BadInput, match=r"Own\.population must return") as error:
        fw.run(tiny(fw.methods.fedavg(2), system=Own()))
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_a_system_that_returns_something_else_is_named(tiny):
    @fw.settings
    class Nothing(System):
        def population(self, base, round, seed):
            return None

    with pytest.raises(fw.BadInput, match=r"Nothing\.population must return a Population\. It returned None"):
        fw.run(tiny(fw.methods.fedavg(2), system=Nothing()))
