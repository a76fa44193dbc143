"""Many clients: the same bits as with a list of arrays, and no object per client on the way to workers."""

from __future__ import annotations

import os
import pickle

import numpy as np

import fedweave as fw
from fedweave.data.deal import Shares
from fedweave.data.partition import Partition
from fedweave.data.ragged import Ragged
from fedweave.engine.pool.shared_data import lay_out, mapped
from fedweave.local.client_data import ClientData

MANY = 20_000


def natural(clients: int) -> fw.Dataset:
    rng, sizes = np.random.default_rng(0), 1 + np.arange(clients) % 3
    group = np.random.default_rng(1).permutation(np.repeat(np.arange(clients), sizes))
    x, y = rng.standard_normal((group.size, 4)), rng.integers(0, 3, group.size)
    return fw.data.from_arrays(x, y, x[:90], y[:90], group=group)


@fw.settings
class OneByOne(Partition):
    """Natural clients as a user would write them: a list of arrays."""

    clients: int | None = None

    def split(self, data, rng):
        order = np.argsort(data.group, kind="stable")
        train = np.split(order.astype(np.int32), np.flatnonzero(np.diff(data.group[order])) + 1)
        return Shares(train, [np.zeros(0, np.int64)] * len(train))


def experiment(partition, **changes):
    given = {"data": natural(MANY), "model": "logistic", "system": fw.system.Dynamic(), "rounds": 3, "workers": 1}
    return fw.Experiment(method=fw.methods.fedacs_estimated(40), partition=partition, **{**given, **changes})


def test_twenty_thousand_clients_as_positions_or_as_a_list_of_arrays(tmp_path):
    result = fw.run(experiment(fw.partition.Natural()), tmp_path / "run")
    again = fw.run(experiment(OneByOne()))
    assert result.summary["digest"] == again.summary["digest"]
    assert all(np.array_equal(result.clients[name], again.clients[name], equal_nan=True) for name in result.clients)
    assert (result.manifest["clients"], result.manifest["labels"]) == (MANY, None)  # too many for a list
    resumed = fw.resume(tmp_path / "run", experiment(fw.partition.Natural()))
    assert resumed.summary["digest"] == result.summary["digest"]


def test_workers_map_the_positions_of_all_clients():
    data = natural(MANY)
    shares = fw.partition.Natural().split(data, np.random.default_rng(0))
    for parts in (shares.train, list(shares.train)):
        given = ClientData.of(data, parts, shares.test)
        file, places = lay_out(given)
        with file:
            assert len(pickle.dumps(places)) < 3000
            there = mapped(os.dup(file.fileno()), places)
        for name in ("parts", "test_parts"):
            mine, theirs = Ragged.of(getattr(given, name)), getattr(there, name)
            assert np.array_equal(mine.values, theirs.values)
            assert np.array_equal(mine.offsets, theirs.offsets)
        assert np.array_equal(there.parts[MANY - 1], shares.train[MANY - 1])


def test_two_workers_and_one_have_the_same_bits():
    changes = {"data": natural(300), "client_eval": 1}
    alone, both = (fw.run(experiment(fw.partition.Natural(), workers=n, **changes)) for n in (1, 2))
    assert alone.summary["digest"] == both.summary["digest"]
    for name, column in alone.client_scores.items():
        assert np.array_equal(column, both.client_scores[name])
