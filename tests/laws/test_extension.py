"""A run that is extended is the longer run, for every method: model, best model, rows, clients and audit log."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
from fedweave.runs.method_names import method_names


def extended(method, **changes):
    given = {
        "data": "quadratics", "partition": fw.partition.IID(6), "system": "dynamic", "rounds": 3,
        "evaluate_every": 2, "lr": "0.1, 0.05@2, 0.02@5", "audit": True, "workers": 1, "true_gradients": True,
    }  # fmt: skip
    return fw.Experiment(method, **given | changes)


def log(result):
    lines = [json.loads(line) for line in (result.folder / "audit.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "chain"} for line in lines]  # which begins with experiment.json


def assert_same(found, wanted):
    assert found.summary["digest"] == wanted.summary["digest"]
    for table in ("rounds", "clients", "client_scores", "best"):
        ours, theirs = ({k: v for k, v in getattr(r, table).items() if k != "wall_seconds"} for r in (found, wanted))
        np.testing.assert_equal(ours, theirs, err_msg=table)
    assert log(found) == log(wanted)
    assert found.experiment == wanted.experiment


@pytest.mark.parametrize("method", method_names())
def test_every_method_goes_on_as_if_it_had_been_meant_to(method, tmp_path):
    """Round 3 is evaluated as the last of the short run, and is not in the long one, which goes on to round 6."""
    short = extended(getattr(fw.methods, method)(3))
    assert np.isfinite(fw.run(short, tmp_path / "run").rounds["loss"]).tolist() == [False, True, True]
    found = fw.resume(tmp_path / "run", rounds=6)
    assert np.isfinite(found.rounds["loss"]).tolist() == [False, True] * 3
    assert_same(found, fw.run(replace(short, rounds=6), tmp_path / "whole"))
