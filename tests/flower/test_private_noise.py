"""No client can subtract the noise of ``Private``: it does not follow from anything that a request holds."""

import json

import numpy as np
import pytest

import fedweave as fw
from fedweave import flower
from fedweave.aggregate import Private
from fedweave.core.randomness import Stream, rng_for
from fedweave.fleet.server.around import noise_secret
from fedweave.fleet.server.pulls import WholeAnswers
from fedweave.fleet.server.terms import VirtualClock
from fedweave.fleet.wire.tensors import Tensors
from fedweave.sample import Uniform
from flower.rehearsal import CLIENTS, app, experiment, interrupted, network, run

CLIP, NOISE, K = 0.1, 1.0, 3
METHOD = fw.Method(Uniform(K), aggregator=Private(CLIP, NOISE), name="private")


class Remote(flower.LocalGrid):
    """A fleet that is not in the server's process, as far as the server can tell; it notes what clients are sent."""

    in_process = False

    def __init__(self):
        super().__init__(app(), CLIENTS)
        self.models, self.numbers = {}, set()

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            if message.metadata.message_type == "train":
                config = message.content["config"]
                request = json.loads(config["fedweave.request"])
                self.models[request["round"]] = vector(message.content["arrays"])
                self.numbers |= {v for v in [*request.values(), *config.values()] if type(v) is int and v >= 0}
        return super().push_messages(messages)


def vector(arrays):
    x = np.empty(sum(a.numpy().size for a in arrays.values()), np.float32)
    Tensors.of_record(arrays).read(arrays, x)
    return x


def can_subtract(models, seed, round=1):
    """The attack: what is left of a step without the noise of this seed is a sum of K clipped updates, if it is it."""
    noise = rng_for(seed, round, Stream.PRIVACY).standard_normal(models[round].size, np.float32)
    rest = K * (models[round + 1] - models[round]) - CLIP * NOISE * noise
    return bool(np.linalg.norm(rest) <= K * CLIP * 1.001)


def strategy(grid, rounds=2):
    options = {"clients": CLIENTS, "fraction_evaluate": 0, "clock": VirtualClock(), "seed": 2**62 + 12345}
    flower.Strategy(METHOD, **options).start(grid, network(), num_rounds=rounds)


def server(grid, rounds=2, **kwargs):
    return run(experiment(METHOD, rounds=rounds, seed=2**62 + 12345), grid, **kwargs)


def test_the_attack_works_where_the_noise_follows_from_the_seed():
    """As in a simulation, and in a rehearsal in one process, which has its bits."""
    states = [state for state, _ in fw.rounds(experiment(METHOD, rounds=2, seed=7))]
    assert can_subtract({2: states[0].x, 3: states[1].x}, 7, round=2)
    assert not can_subtract({2: states[0].x, 3: states[1].x}, 8, round=2)


def test_a_grid_of_flower_is_not_in_process():
    from flwr.superlink.grid.http_grid import HttpGrid

    flowers = HttpGrid.__new__(HttpGrid)
    assert noise_secret(flowers) != noise_secret(flowers)
    assert noise_secret(WholeAnswers(flowers)) is not None
    assert noise_secret(WholeAnswers(flower.LocalGrid(app(), CLIENTS))) is None


@pytest.mark.parametrize("begin", [strategy, server])
@pytest.mark.parametrize("around", [lambda grid: grid, WholeAnswers], ids=["plain", "in threads"])
def test_nothing_in_a_request_reproduces_the_noise(begin, around):
    grid = Remote()
    begin(around(grid), 3)
    assert 2**62 + 12345 in grid.numbers, "clients know the seed, by which they may draw their batches"
    assert not any(can_subtract(grid.models, n, r) for n in grid.numbers for r in (1, 2))


def test_two_runs_with_the_same_seed_have_other_noise():
    """So a server that comes back, or a second one, cannot be subtracted from the first."""
    grids = [Remote(), Remote()]
    for grid in grids:
        strategy(grid)
    one, other = (grid.models for grid in grids)
    assert np.array_equal(one[1], other[1])
    assert K * np.linalg.norm(one[2] - other[2]) > 2 * K * CLIP, "more than any two sums of clipped updates differ by"


def test_a_server_that_comes_back_goes_on_and_counts_on(tmp_path):
    folder = tmp_path / "run"
    interrupted(experiment(METHOD, rounds=4), Remote(), folder, 2)
    result = run(experiment(METHOD, rounds=4), Remote(), out=folder)
    epsilon = result.rounds["epsilon"]
    assert len(epsilon) == 4
    assert (np.diff(epsilon) >= 0).all()
    assert epsilon[-1] > epsilon[1]
