"""Clustered sampling: distributions as the paper demands them, groups by similarity, and counts that vary less."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import worlds
from fedweave.sample import Clustered
from fedweave.sample.clustered import WIDTH, fill_with_groups, groups_of_at_most_one, sketch, unit


def view(weight, **fields):
    weight = np.asarray(weight, float)
    return worlds.view(worlds.equal_clients(weight.size, weight=weight / weight.sum()), **fields)


weights = st.lists(st.integers(1, 60), min_size=1, max_size=9)


@settings(deadline=None)
@given(weights, st.integers(1, 7), st.integers(0, 100))
def test_every_distribution_sums_to_one_and_every_client_to_its_share(weight, draws, seed):
    share = draws * np.array(weight) / sum(weight)
    direction = unit(np.random.default_rng(seed).standard_normal((share.size, 3)))
    client, piece = fill_with_groups(share, direction)
    assert (piece > 0).all()
    assert np.allclose(np.bincount(client, piece, share.size), share, atol=1e-9)
    end = piece.cumsum()
    own = piece == np.round(piece)  # whole distributions
    assert (np.floor(end - piece + 1e-9) == np.ceil(end - 1e-9) - 1)[~own].all(), "a piece lies in two distributions"
    assert np.allclose(end[own], np.round(end[own]))


@pytest.mark.parametrize("by", ["size", "similarity"])
@settings(deadline=None)
@given(weight=weights, draws=st.integers(1, 7), seed=st.integers(0, 100))
def test_large_clients_are_certain_and_nobody_is_drawn_too_often(by, weight, draws, seed):
    """By size a share touches at most ⌈K ω⌉ + 1 distributions and fills at least ⌊K ω⌋ − 1; by similarity ⌊K ω⌋."""
    rng, now, sampler = np.random.default_rng(seed), view(weight), Clustered(draws, by)
    state = {"direction": unit(rng.standard_normal((len(weight), WIDTH)))}
    law = sampler.law(state, now)
    assert np.allclose(law, draws * np.array(weight) / sum(weight))
    cohort = sampler.draw(state, now, rng)
    count = np.bincount(cohort.ids, cohort.count, len(weight))
    assert count.sum() == draws
    assert (count >= np.floor(law + 1e-9) - (1 if by == "size" else 0)).all()
    assert by == "similarity" or (count <= np.ceil(law - 1e-9) + 1).all()
    assert np.array_equal(cohort.expected, law[cohort.ids])


@settings(deadline=None)
@given(weights, st.integers(1, 7), st.integers(0, 100))
def test_counts_by_similarity_vary_at_most_as_much_as_multinomial_ones(weight, draws, seed):
    """Var = Σ_k r (1 − r), from the pieces in each distribution; K ω (1 − ω) is that of K draws by ω."""
    share = draws * np.array(weight) / sum(weight)
    client, piece = fill_with_groups(share, unit(np.random.default_rng(seed).standard_normal((share.size, 3))))
    variance = np.bincount(client, piece * (1 - piece), share.size)[np.floor(share + 1e-9) == 0]
    assert (variance <= (share * (1 - share / draws))[np.floor(share + 1e-9) == 0] + 1e-9).all()


def test_like_clients_share_a_distribution():
    """Three kinds of data, four clients each, K = 3: every round hears each kind once; by size it does not."""
    kind = np.arange(12) % 3
    direction = np.zeros((12, WIDTH))
    direction[np.arange(12), kind] = 1
    direction[:, 3] = np.random.default_rng(0).normal(0, 0.05, 12)
    now, rng, state = view(np.ones(12)), np.random.default_rng(1), {"direction": unit(direction)}
    for _ in range(30):
        assert sorted(kind[Clustered(3, "similarity").draw(state, now, rng).ids]) == [0, 1, 2]
    mixed = [set(kind[Clustered(3).draw({}, now, rng).ids]) for _ in range(30)]
    assert any(len(kinds) < 3 for kinds in mixed)


def test_groups_are_the_largest_subtrees_that_fit():
    """By hand: two tight pairs and a loner; a pair of 1.1 is cut, one of 0.9 is not."""
    direction = np.array([[0.0, 0], [0, 0.1], [5, 0], [5, 0.1], [0, 9]])
    group = groups_of_at_most_one(np.array([0.5, 0.4, 0.6, 0.5, 1.0]), direction)
    assert group[0] == group[1]
    assert np.unique(group).size == 4
    assert groups_of_at_most_one(np.full(5, 0.2), direction).max() == 0
    assert np.unique(groups_of_at_most_one(np.full(5, 0.6), direction)).size == 5


def test_what_is_left_of_a_distribution_is_filled_by_small_groups():
    """Shares 0.7, 0.6, 0.4, 0.3 of unlike clients, K = 2: distributions of the two largest, filled in this order."""
    client, piece = fill_with_groups(np.array([0.7, 0.6, 0.4, 0.3]), np.eye(4))
    assert client.tolist() == [0, 2, 1, 2, 3]
    assert np.allclose(piece, [0.7, 0.3, 0.6, 0.1, 0.3])


def test_directions_are_learned_from_answers_alone():
    now, sampler = view(np.ones(4), dim=5, layout=worlds.layout(5, 3)), Clustered(2, "similarity")
    before = sampler.init(now.population)
    updates = np.array([[3, 0, 4, 9, 9], [1, 1, 1, 9, 9]], np.float32)
    after = sampler.learn(before, now, worlds.cohort([1, 3]), worlds.replies(updates, [True, False]))
    assert np.allclose(after["direction"][1, :4], [0.6, 0, 0.8, 0]), "buffers have no direction"
    assert not after["direction"][[0, 2, 3]].any()
    assert not before["direction"].any()
    assert Clustered(2).learn({}, now, worlds.cohort([1, 3]), worlds.replies(updates)) == {}


def test_a_sketch_keeps_inner_products_on_average():
    """Over 400 sketches the mean is within 4 standard errors of the product; short rows are kept as they are."""
    rows = np.random.default_rng(0).standard_normal((2, 3 * WIDTH)) + 0.5
    found = [np.dot(*sketch(rows, seed)) for seed in range(400)]
    assert abs(np.mean(found) - rows[0] @ rows[1]) < 4 * np.std(found) / 20
    assert np.std(found) < 2 * np.linalg.norm(rows[0]) * np.linalg.norm(rows[1]) / np.sqrt(WIDTH)
    short = rows[:, :WIDTH]
    assert np.array_equal(sketch(short, 0), short)
    assert np.array_equal(sketch(rows[:, :5], 0)[:, :5], rows[:, :5])
    assert sketch(rows[:0], 0).shape == (0, WIDTH)
