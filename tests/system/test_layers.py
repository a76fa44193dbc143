"""What is laid around a world: factors of mean one, days and nights, chains with the law of a Markov chain."""

from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest

import fedweave as fw
from fedweave.core.settings import BadInput
from fedweave.sample.fedcs import link_seconds
from fedweave.system import DayNight, Devices, Dynamic, Jittered, Latency, OnOff, Trace, Uniform, names
from fedweave.system.layers import chain_at, layers_of
from worlds import equal_clients


def base(n, **fields):
    return equal_clients(n, **({"model_bytes": 1_000_000} | fields))


def available(world, rounds, n, seed=0):
    """Return who is there (rounds, N) bool."""
    clients = base(n)
    return np.stack([world.population(clients, r, seed).available for r in rounds])


EVEN = Devices(step_seconds=1, up_mbit=4, down_mbit=8)  # 3 s of computing, 2 s up, 1 s down


def test_jitter_has_mean_one_on_computing_and_on_links():
    n, clients = 100_000, base(100_000)
    p = Jittered(EVEN, compute=0.5, link=0.8).population(clients, 4, 1)
    link = sum(link_seconds(p))
    computing, sending = (p.latency - link) / 3, link / 3
    for factor, sigma in ((computing, 0.5), (sending, 0.8)):
        assert abs(factor.mean() - 1) < 4 * np.sqrt((np.exp(sigma**2) - 1) / n)
        assert np.log(factor).std() == pytest.approx(sigma, rel=4 / np.sqrt(2 * n))
        assert np.log(factor).mean() == pytest.approx(-(sigma**2) / 2, abs=4 * sigma / np.sqrt(n))
    assert abs(np.corrcoef(np.log(computing), np.log(sending))[0, 1]) < 4 / np.sqrt(n)
    assert np.allclose(p.up_rate * sending, 4e6), "both directions are as slow"
    assert np.allclose(p.down_rate * sending, 8e6)


def test_jitter_of_one_leaves_the_other():
    still = EVEN.population(base(20), 1, 0)
    links = Jittered(EVEN, compute=0, link=1).population(base(20), 1, 0)
    assert np.allclose(links.latency - sum(link_seconds(links)), 3)
    assert np.ptp(links.up_rate) > 0
    devices = Jittered(EVEN, compute=1, link=0).population(base(20), 1, 0)
    assert np.array_equal(devices.up_rate, still.up_rate)
    assert np.ptp(devices.latency) > 0
    assert np.array_equal(Jittered(EVEN, compute=0, link=0).population(base(20), 1, 0).latency, still.latency)


def test_without_rates_a_whole_participation_is_jittered_anew_every_round():
    world, still = Jittered(Latency(), compute=0.3), Latency().population(base(9), 1, 5)
    one, two, again = (world.population(base(9), r, 5) for r in (1, 2, 1))
    assert one.up_rate is None
    assert np.array_equal(one.latency, again.latency)
    assert not np.array_equal(one.latency, two.latency)
    factors = [one.latency / still.latency, Jittered(Uniform(), compute=0.3).population(base(9), 1, 5).latency]
    assert np.allclose(*factors), "the factors are the dispatch's, whatever the world"
    loud = Jittered(Dynamic(), compute=1).population(base(9), 3, 5)
    assert np.array_equal(loud.steps, Dynamic().population(base(9), 3, 5).steps)


@pytest.mark.parametrize(
    ("period", "share", "spread", "n"),
    [(24, "1/2", "1", 7), (20, "11/20", "1", 20), (10, "7/10", "1/2", 9), (5, "1/3", "1", 4), (3, "1", "1", 2)],
)
def test_days_and_nights_by_brute_force(period, share, spread, n):
    """In exact fractions: client i's clock is ahead by spread · i/N of a period, and it is there while it is day."""
    world = DayNight(period=period, share=float(Fraction(share)), zones="ordered", spread=float(Fraction(spread)))
    for round in range(1, 3 * period + 1):
        hours = [(round - 1 + period * Fraction(spread) * Fraction(i, n)) % period for i in range(n)]
        there = world.population(base(n), round, round).available
        assert there.tolist() == [hour < Fraction(share) * period for hour in hours], round


def test_drawn_zones_give_everyone_one_day_in_every_period():
    n, world = 4000, DayNight(period=10, share=0.3)
    there = available(world, range(1, 31), n)
    assert np.array_equal(there[:10], there[10:20])
    assert (there[:10].sum(0) == 3).all()
    changes = there[:10] != np.roll(there[:10], 1, axis=0)
    assert (changes.sum(0) == 2).all(), "one morning, one evening"
    assert np.abs(there[:10].mean(1) - 0.3).max() < 4 * np.sqrt(0.21 / n)
    assert not np.array_equal(there, available(world, range(1, 31), n, seed=1))


def test_without_spread_all_sleep_together():
    there = available(DayNight(period=4, share=0.5, spread=0), range(1, 9), 5)
    assert there.all(1).tolist() == [True, True, False, False] * 2
    assert there.any(1).tolist() == [True, True, False, False] * 2


def test_ordered_zones_take_whole_classes_away():
    """With one class per neighbourhood of clients only some of the labels are there at a time."""
    labels = np.repeat(np.arange(4), 5)
    there = available(DayNight(period=8, share=0.25, zones="ordered"), range(1, 9), 20)
    seen = [set(labels[row].tolist()) for row in there]
    assert max(map(len, seen)) <= 2
    assert set().union(*seen) == {0, 1, 2, 3}


CHAINS = [(3.0, 2.0), (1.25, 1.25), (10.0, 1.0), (1.0, 4.0)]  # λ = 1/6, −0.6, −0.1, −0.25


@pytest.mark.parametrize(("up", "down"), CHAINS)
def test_paths_have_the_probabilities_of_the_markov_chain(up, down):
    """All paths over six rounds, which times on both sides of a power of two have drawn in another order."""
    n = 40_000
    paths = available(OnOff(up=up, down=down), range(3, 9), n, seed=2).astype(int)
    found = np.bincount(2 ** np.arange(6) @ paths, minlength=64) / n
    share = up / (up + down)
    step = np.array([[1 - 1 / down, 1 / down], [1 / up, 1 - 1 / up]])
    for path in product((0, 1), repeat=6):
        chance = (1 - share, share)[path[0]] * np.prod([step[a, b] for a, b in pairwise(path)])
        at = sum(bit << i for i, bit in enumerate(path))
        assert abs(found[at] - chance) <= 4.5 * np.sqrt(chance * (1 - chance) / n), path


@pytest.mark.parametrize(("up", "down"), [(20.0, 20.0), (40.0, 5.0), (2.0, 30.0)])
def test_stationary_share_and_autocorrelation(up, down):
    """π = up/(up + down) in every round, and λ^k at lag k, λ = 1 − 1/up − 1/down."""
    n, world = 20_000, OnOff(up=up, down=down)
    share, decay = up / (up + down), 1 - 1 / up - 1 / down
    rounds = [1, 2, 5, 9, 17, 32, 33, 48, 65, 1_000_003]
    there = dict(zip(rounds, available(world, rounds, n).astype(float), strict=True))
    for row in there.values():
        assert abs(row.mean() - share) < 4 * np.sqrt(share * (1 - share) / n)
    for a, b in [(1, 2), (5, 9), (9, 17), (17, 32), (32, 33), (33, 65), (48, 65), (2, 48), (65, 1_000_003)]:
        found = np.mean((there[a] - share) * (there[b] - share)) / (share * (1 - share))
        skew = (1 - 2 * share) ** 2 / (share * (1 - share))
        error = np.sqrt((1 + decay ** (b - a) * skew) / n)  # of a product of two standardised signs
        assert abs(found - decay ** (b - a)) < 4.5 * error, (a, b)


def test_a_chain_is_a_pure_function_of_its_time():
    world, rounds = OnOff(up=7, down=3), [12, 1, 40, 13, 2, 39]
    once = available(world, rounds, 50, seed=9)
    chain_at.cache_clear()
    assert np.array_equal(available(world, rounds[::-1], 50, seed=9)[::-1], once)
    assert not np.array_equal(available(world, rounds, 50, seed=8), once)


def test_a_chain_without_chance_alternates():
    there = available(OnOff(up=1, down=1), range(1, 20), 30)
    assert (there[1:] != there[:-1]).all()


def test_layers_agree_on_who_is_there_and_change_nothing_else():
    day, chain = DayNight(period=6, share=0.5), OnOff(up=5, down=5)
    both = DayNight(OnOff(Dynamic(), up=5, down=5), period=6, share=0.5)
    for round in (1, 2, 9):
        found, plain = both.population(base(40), round, 3), Dynamic().population(base(40), round, 3)
        parts = [w.population(base(40), round, 3).available for w in (day, chain)]
        assert np.array_equal(found.available, parts[0] & parts[1])
        assert np.array_equal(found.steps, plain.steps)
        assert np.array_equal(found.latency, plain.latency)
    assert [type(layer) for layer in layers_of(both)] == [DayNight, OnOff, Dynamic]


def test_worlds_and_layers_are_written_with_commas(tmp_path):
    path = tmp_path / "a,b.csv"
    path.write_text("client,available\n0,0\n")
    (tmp_path / "c.csv").write_text("client,available\n0,0\n")
    for text, world in {
        "lognormal,jitter:0.3": Jittered(Latency.heavy_tailed(), compute=0.3),
        "devices, jitter:0.1:0.5, day-night:24:0.25:ordered": DayNight(
            Jittered(Devices(), compute=0.1, link=0.5), period=24, share=0.25, zones="ordered"
        ),
        "on-off:8:2": OnOff(Uniform(), up=8, down=2),
        "day-night": DayNight(),
        "devices:0.05:2": Devices(step_seconds="lognormal:0.05:0.5", up_mbit="lognormal:2:1"),
        str(path): Trace(path),
        f"devices,{tmp_path}/c.csv": Trace(tmp_path / "c.csv", inner=Devices()),
        f"{tmp_path}/c.csv,jitter": Jittered(Trace(tmp_path / "c.csv")),
    }.items():
        assert names.parse(text) == world, text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("uniform,jiter:0.3", r"There is no layer around a system 'jiter:0.3'.*Valid: jitter, day-night, on-off"),
        ("jitterr", r"There is no system 'jitterr'. Did you mean 'jitter'\?"),
        ("uniform,jitter:0.1:0.2:0.3", r"'jitter:0.1:0.2:0.3' has too many values. Write jitter:COMPUTE:LINK"),
        ("jitter,jitter", r"^Jittered is inside another Jittered, and both would draw the same numbers\."),
        ("on-off,jitter,on-off:3:1", "OnOff is inside another OnOff"),
        ("day-night,day-night:3", "DayNight is inside another DayNight"),
        ("day-night:1", r"(?s)'period' parameter of DayNight must be .* 2.*It is written day-night:PERIOD"),
        ("day-night:24:0.5:east", r"'zones' parameter of DayNight must be 'drawn' or 'ordered'"),
        ("on-off:0.5:2", r"'up' parameter of OnOff must be greater than or equal to 1"),
        ("devices:1:2:3:4", r"has 4 values. Write devices:STEP_SECONDS"),
        ("devices:fast", r"devices"),
        ("devices:-1", r"(?s)'step_seconds' parameter of Devices must be .*Write devices:STEP_SECONDS"),
        ("uniform,latency", r"There is no layer around a system 'latency'"),
    ],
)
def test_what_is_no_world_is_refused(text, words):
    with pytest.raises(BadInput, match=words):
        names.parse(text)


def test_work_that_the_inner_world_draws_is_not_ignored():
    with pytest.raises(BadInput, match="'steps' has no effect under Dynamic"):
        fw.Experiment("fedavg", "digits", system="dynamic,jitter,day-night", steps=3)


class Undeclared(Uniform):
    """A world without @settings."""


def test_an_own_world_inside_a_layer_is_checked_too(tiny):
    own = object.__new__(Undeclared)
    with pytest.raises(BadInput, match=r"Undeclared must be declared with @fedweave\.settings"):
        tiny(system=DayNight(own))


def test_a_run_in_such_a_world_is_resumed_to_the_same_bits(tiny, tmp_path):
    e = tiny(fw.methods.feddd(), system="devices,jitter:0.3,day-night:5:0.6,on-off:3:2", epochs=1)
    whole = fw.run(e)

    def stop(row):
        if row["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(fw.Interrupted):
        fw.run(e, tmp_path / "run", stop)
    chain_at.cache_clear()
    resumed = fw.resume(tmp_path / "run")
    assert resumed.experiment["system"] == whole.experiment["system"]
    assert resumed.summary["digest"] == whole.summary["digest"]
    for name in ("clock", "asked", "bytes_up", "bytes_down"):
        assert np.array_equal(resumed.rounds[name], whole.rounds[name]), name
    assert whole.rounds["asked"].min() < whole.rounds["asked"].max()
