"""A strategy that is saved and loaded goes on to the same bits, and nothing but what was saved is loaded."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

import fedweave as fw
from fedweave import flower
from fedweave.core import crash_points
from fedweave.fleet.server.terms import Terms, VirtualClock
from fedweave.fleet.wire.tensors import packed
from flower.plain_app import N, initial, plain
from flower.rehearsal import CLIENTS, SlowGrid, app, asked_in, flat, network


def ours(method, **options):
    return flower.Strategy(method, clock=VirtualClock(), **options)


def load(folder, **options):
    return flower.Strategy.load(folder, clock=VirtualClock(), **options)


def same(one, other):
    return all(a.data == b.data for a, b in zip(one.values(), other.values(), strict=True))


def flaky(client, message):
    return "raises" if client == 4 and asked_in(message) % 2 else ""


PLAIN = ["fedavg", "fedacs", "fedvarp", "fedavgm", "fedyogi", "fedaware", "fedawe", "mifa", "fedau"]


@pytest.mark.parametrize("name", PLAIN)
def test_plain_apps_go_on_to_the_same_bits(name, tmp_path):
    """Links are learned from failures, and whole numbers are a client's: all of it is in the folder."""
    arrays = ArrayRecord({**initial(), "bn.num_batches_tracked": packed(np.array(0))})
    make, grid = getattr(fw.methods, name), flower.LocalGrid(plain(), N, fate=flaky)
    whole = ours(make(3), fraction_evaluate=0.5)
    straight = whole.start(grid, arrays, num_rounds=6)
    first = ours(make(3), fraction_evaluate=0.5)
    first.start(grid, arrays, num_rounds=4)
    first.save(tmp_path / "saved")
    second = load(tmp_path / "saved")
    assert same(second.arrays, first.arrays)
    rest = second.start(grid, arrays, num_rounds=2)
    assert same(rest.arrays, straight.arrays)
    assert sorted(rest.train_metrics_clientapp) == [5, 6]
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        assert getattr(rest, kind)[6] == getattr(straight, kind)[6]
    assert second._known.seen.keys() == whole._known.seen.keys()
    assert all(np.array_equal(second._known.seen[key], values) for key, values in whole._known.seen.items())


@pytest.mark.parametrize("name", ["scaffold", "feddd", "latency_optimal"])
def test_our_clients_go_on_to_the_same_bits(name, tmp_path):
    def begin():
        clock = VirtualClock()
        grid = SlowGrid(clock, lambda client: 1.0 + client, app(), CLIENTS)
        terms = Terms(poll_seconds=0.5)
        make = getattr(fw.methods, name)
        options = {"lr": 0.1, "clients": CLIENTS, "fraction_evaluate": 0, "terms": terms, "clock": clock}
        return grid, flower.Strategy(make(3), **options), clock

    grid, whole, _ = begin()
    straight = whole.start(grid, network(), num_rounds=4)
    grid, first, clock = begin()
    first.start(grid, network(), num_rounds=2)
    first.save(tmp_path)
    second = flower.Strategy.load(tmp_path, clock=clock)
    assert second.local == first.local
    assert same(second.start(grid, network(), num_rounds=2).arrays, straight.arrays)


COSINES = [{"lr": "cosine:0.1"}, {"lr": "warmup:2, cosine:0.1"}, {"own": "cosine:0.1"}]


@pytest.mark.parametrize("rate", COSINES, ids=str)
def test_a_rate_that_depends_on_the_number_of_rounds_keeps_that_number(rate, tmp_path):
    """A crash in the middle is continued to the same bits; more rounds would have had other rates from the start."""

    def begin():
        method = fw.methods.fedavg(3) if "lr" in rate else replace(fw.methods.fedavg(3), lr=rate["own"])
        return ours(method, lr=rate.get("lr", 0.05), clients=CLIENTS, fraction_evaluate=0)

    def crash(server_round, arrays):
        if server_round == 2:
            first.save(tmp_path / "saved")
            raise KeyboardInterrupt

    straight, first = begin().start(flower.LocalGrid(app(), CLIENTS), network(), num_rounds=4), begin()
    with pytest.raises(KeyboardInterrupt):
        first.start(flower.LocalGrid(app(), CLIENTS), network(), num_rounds=4, evaluate_fn=crash)
    second, asked = load(tmp_path / "saved"), []
    for rounds in (1, 4):
        with pytest.raises(fw.BadInput, match=rf"a run of {2 + rounds} instead of 4 .* num_rounds=2 finishes it"):
            second.start(flower.LocalGrid(app(), CLIENTS), network(), num_rounds=rounds)
    assert same(second.start(flower.LocalGrid(app(), CLIENTS), network(), num_rounds=2).arrays, straight.arrays)
    second.save(tmp_path / "saved")
    for done in (second, load(tmp_path / "saved")):
        with pytest.raises(fw.BadInput, match=r"a run of 8 instead of 4 .* Begin a new strategy with num_rounds=8"):
            done.start(flower.LocalGrid(app(), CLIENTS, fate=lambda *_: asked.append(1)), network(), num_rounds=4)
    assert not asked


def test_rounds_are_counted_on_for_everyone(tmp_path):
    """The clients' rounds, the results' and those of evaluate_fn go on, in the same object and in a loaded one."""
    seen, evaluated = [], []
    grid = flower.LocalGrid(plain(seen), N)

    def evaluate(server_round, arrays):
        evaluated.append(server_round)

    strategy = ours(fw.methods.fedavg(2))
    result = strategy.start(grid, initial(), num_rounds=2, evaluate_fn=evaluate)
    strategy.start(grid, result.arrays, num_rounds=1, evaluate_fn=evaluate)
    strategy.save(tmp_path)
    result = load(tmp_path).start(grid, initial(), num_rounds=2, evaluate_fn=evaluate)
    assert evaluated == [0, 1, 2, 2, 3, 3, 4, 5]
    assert sorted({config["server-round"] for _, config in seen}) == [1, 2, 3, 4, 5]
    assert sorted(result.evaluate_metrics_clientapp) == [4, 5]


def test_seats_stay_with_their_nodes(tmp_path):
    """One who comes back keeps its number though others have gone."""
    grid, strategy = flower.LocalGrid(plain(), N), ours(fw.methods.fedavg(N))
    strategy.start(grid, initial(), num_rounds=1)
    strategy.save(tmp_path)
    before = dict(strategy._places.node)
    grid.online = set(sorted(grid.nodes)[2:])
    again = load(tmp_path)
    again.start(grid, initial(), num_rounds=1)
    here = {client: node for client, node in again._places.node.items() if node in grid.online}
    assert here == {client: node for client, node in before.items() if node in grid.online}
    assert again._places.size == N


def test_a_wrappers_noise_is_part_of_what_is_saved(tmp_path):
    """The model before the noise must not be on disk."""
    start = ArrayRecord({"w": packed(np.zeros(9, np.float32))})
    inner, grid = ours(fw.methods.fedavg(N), fraction_evaluate=0), flower.LocalGrid(plain(), N)
    result = DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 0.5, N).start(grid, start, num_rounds=2)
    inner.save(tmp_path)
    assert not same(inner._given, result.arrays)
    loaded = load(tmp_path)
    assert same(loaded.arrays, result.arrays)
    again = DifferentialPrivacyServerSideFixedClipping(loaded, 0.0, 0.5, N).start(grid, loaded.arrays, num_rounds=1)
    assert np.linalg.norm(flat(again.arrays) - flat(result.arrays)) <= 0.5 + 1e-6
    assert loaded._state.round == 3


def test_a_wrapper_that_begins_with_another_model_than_the_saved_one_is_refused(tmp_path):
    """It would go on with that one, though the momenta are those of the saved."""
    start = ArrayRecord({"w": packed(np.zeros(9, np.float32))})
    inner, grid = ours(fw.methods.fedavgm(N), fraction_evaluate=0), flower.LocalGrid(plain(), N)
    inner.start(grid, start, num_rounds=2)
    inner.save(tmp_path)
    asked = []
    grid._fate = lambda client, message: asked.append(client) or ""
    other = ArrayRecord({"v": packed(np.zeros(9, np.float32))})
    for arrays in (start, other):
        with pytest.raises(fw.BadInput, match=r"goes on with its saved model.*wrapper\.start\(grid, strategy\.arrays"):
            DifferentialPrivacyServerSideFixedClipping(load(tmp_path), 0.0, 0.5, N).start(grid, arrays, num_rounds=1)
    assert not asked
    copy = ArrayRecord({name: packed(array.numpy().copy()) for name, array in inner.arrays.items()})
    wrapped = DifferentialPrivacyServerSideFixedClipping(load(tmp_path), 0.0, 0.5, N)
    assert len(wrapped.start(grid, copy, num_rounds=1).arrays) == 1


def test_functions_are_given_again_and_settings_are_kept(tmp_path):
    strategy = ours(
        fw.methods.fedacs(3), weighted_by_key="num-examples", fraction_train=0.6, min_evaluate_nodes=1, seed=7
    )
    strategy.start(flower.LocalGrid(plain(), N), initial(), num_rounds=1)
    strategy.save(tmp_path)
    loaded = load(tmp_path, train_metrics_aggr_fn=lambda contents, key: None)
    assert loaded.local == strategy.local
    assert loaded.method == strategy.method
    result = loaded.start(flower.LocalGrid(plain(), N), initial(), num_rounds=1)
    assert set(result.train_metrics_clientapp[2]) == {"asked", "received", "refused"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strategy")
    strategy = ours(fw.methods.fedvarp(3))
    strategy.start(flower.LocalGrid(plain(), N), initial(), num_rounds=2)
    strategy.save(folder)
    return folder, strategy


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved[0], tmp_path / "copy")


def test_a_folder_holds_no_code(saved):
    files = sorted(path.name for path in saved[0].rglob("*") if path.is_file())
    assert {path.rpartition(".")[2] for path in files} == {"json", "safetensors", "bin"}


def test_a_kill_at_any_moment_leaves_the_last_save(copy, saved):
    """And the next save removes what it left."""
    strategy, moments = saved[1], []
    expected = load(copy).arrays

    def stop_at(number):
        count = iter(range(10**6))

        def strike(name):
            if next(count) == number:
                raise KeyboardInterrupt

        return strike

    for number in range(1000):
        crash_points.strike = stop_at(number)
        try:
            strategy.save(copy)
            break
        except KeyboardInterrupt:
            moments.append(number)
        finally:
            crash_points.strike = None
        assert same(load(copy).arrays, expected)
    assert len(moments) > 5
    assert len(list(copy.glob("round-*"))) == 1


def replace_in(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DAMAGE = {
    "not there": (lambda f: (f / "strategy.json").unlink(), "is not a saved strategy"),
    "no JSON": (lambda f: (f / "strategy.json").write_text("null"), "cannot be read"),
    "format": (lambda f: replace_in(f / "strategy.json", format=9), "has format 9"),
    "elsewhere": (lambda f: replace_in(f / "strategy.json", folder="../round-000002.1"), "'folder'"),
    "type": (lambda f: replace_in(f / "strategy.json", arrays={"w": {"type": "object", "shape": [1]}}), "arrays"),
    "shape": (
        lambda f: replace_in(f / "strategy.json", arrays={"w": {"type": "float32", "shape": [3]}}),
        "does not have the arrays",
    ),
    "absurd": (
        lambda f: replace_in(f / "strategy.json", arrays={"w": {"type": "int8", "shape": [2**47]}}),
        "does not have the arrays",
    ),
    "method": (lambda f: replace_in(f / "strategy.json", method={"type": "os:system"}), "os:system"),
    "option": (lambda f: replace_in(f / "strategy.json", options={"type": "StrategyOptions"}), "options"),
    "state": (lambda f: next(f.glob("round-*/state*")).write_bytes(b"x"), "is missing or damaged"),
    "fleet": (lambda f: next(f.glob("round-*/fleet*")).unlink(), "is missing or damaged"),
    "rows": (lambda f: os.truncate(next(f.glob("round-*/rows*")), 8), "tables .* are missing or damaged"),
}


@pytest.mark.parametrize("harm", DAMAGE)
def test_what_was_not_saved_is_refused_in_one_sentence(harm, copy):
    do, says = DAMAGE[harm]
    do(copy)
    with pytest.raises(fw.BadInput, match=says):
        load(copy)


def test_a_save_removes_no_folder_but_its_own(copy):
    """A user's round-1.5 beside it is not one of them."""
    for name in ("round-1.5", "round-000001.5.bak", "round-000001x.5"):
        (copy / name).mkdir()
        (copy / name / "notes").touch()
    strategy = load(copy)
    strategy.save(copy)
    assert {f.name for f in copy.iterdir() if f.is_dir() and (f / "notes").exists()} == {
        "round-1.5",
        "round-000001.5.bak",
        "round-000001x.5",
    }
    assert len([f for f in copy.iterdir() if f.is_dir()]) == 4


def test_other_models_and_other_folders_are_refused(copy, tmp_path):
    with pytest.raises(fw.BadInput, match="another model than initial_arrays: 'w' differs"):
        load(copy).start(flower.LocalGrid(plain(), N), ArrayRecord({"w": packed(np.zeros(3))}), num_rounds=1)
    with pytest.raises(fw.BadInput, match="There is nothing to save"):
        ours(fw.methods.fedavg(2)).save(tmp_path / "new")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(fw.BadInput, match="holds something else than a saved strategy"):
        load(copy).save(tmp_path / "mine")
    load(copy).save(tmp_path / "another")
    assert same(load(tmp_path / "another").arrays, load(copy).arrays)
