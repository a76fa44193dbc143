"""Rounds that overlap: the same as synchronous ones where they should be, and as event loops written by hand."""

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave import aggregate, sample
from fedweave.core.flights import Sent, flights_of
from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Cohort
from fedweave.core.roles import Sampler
from fedweave.engine.simulator import Simulator
from fedweave.local.quadratic import Quadratics, QuadraticTrainer
from fedweave.local.solvers import Prox
from fedweave.local.trainer import of_each, of_one
from fedweave.pacing import Buffered, Synchronous
from fedweave.round import first_state, run_round
from fedweave.round.memories import commit_memories
from fedweave.runs.method_names import method_names, parse
from fedweave.sample.fixed import empty_cohort
from fedweave.tables.rows import Rows

N, D, LR = 9, 4, 0.1
PROBLEM = Quadratics.random(N, D)
WEIGHT = np.arange(1.0, N + 1) / np.arange(1.0, N + 1).sum()


def clients(n=N, **fields):
    """Return uneven clients whose links have rates."""
    rate = {"up_rate": np.linspace(50, 90, n), "down_rate": np.linspace(80, 200, n), "model_bytes": np.full(n, 8 * D)}
    plain = {"weight": WEIGHT[:n] / WEIGHT[:n].sum(), "steps": 1 + np.arange(n) % 4, "samples": 5 + np.arange(n)}
    return worlds.equal_clients(n, **(rate | plain | fields))


def even(number):
    """Return a world in which all participations take equally long."""
    return clients(up_rate=None, down_rate=None)


def lognormal(number):
    """Return a world of heavy-tailed seconds, redrawn for each dispatch."""
    return clients(latency=np.random.default_rng(number).lognormal(0, 1, N))


def play(method, rounds, world, seed=0, state=None, **how):
    """Yield the state after each round, and what happened in it."""
    method = method.widened
    engine = worlds.quadratic_simulator(PROBLEM, method.solver, seed, WEIGHT, method.upload)
    state = state or first_state(method, np.full(D, 2.0), world(1), D)
    for _ in range(rounds):
        state, happened = run_round(method, state, world, engine, LR, seed, **how)
        yield state, happened


def told(state, happened):
    """Return all that a round leaves, as bytes."""
    everyone, cohort, replies = np.arange(N), happened.cohort, happened.replies
    tables = [state.sampler, state.aggregator, state.server, state.clients, state.upload]
    arrays = [v if isinstance(v, np.ndarray) else v[everyone] for part in tables for _, v in sorted(part.items())]
    names = ("received", "updates", "steps", "loss", "seconds", "bytes_up", "first_gradient", "first_loss")
    arrays += [state.x, cohort.ids, cohort.count, cohort.expected, happened.direction]
    arrays += [getattr(replies, name) for name in names]
    found = [np.ascontiguousarray(a).tobytes() for a in arrays]
    return [*found, state.clock, state.round, happened.bytes_down, cohort.probed]


def fits(name):
    """Return whether a method can have asynchronous rounds."""
    return not Buffered(3, 3).misfit(parse(name, 3).sampler)


@pytest.mark.parametrize("world", [even, lognormal])
@pytest.mark.parametrize("name", [name for name in method_names() if fits(name)])
def test_as_many_as_the_buffer_without_losses_is_synchronous(name, world):
    """Bit for bit: model, rows, memories and clock, for every method that can."""
    method = parse(name, 3)
    runs = [play(replace(method, pacing=pacing), 6, world) for pacing in (Synchronous(), Buffered(3, 3))]
    for one, other in zip(*runs, strict=True):
        assert told(*one) == told(*other)
        assert not other[1].replies.staleness.any()
        assert not flights_of(other[0].flights).client.size


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedvarp", "latency_uniform", "fedavg_full", "fedaware"])
def test_nobody_late_is_synchronous(name):
    runs = [play(replace(parse(name, 3), pacing=Synchronous(late=late)), 6, lognormal) for late in ("drop", "discount")]
    for one, other in zip(*runs, strict=True):
        assert told(*one) == told(*other)


# By hand: an event loop as one would write it, client by client and event by event


def fastest(seconds, free, draws):
    """Return whom ``sample.Deadline`` asks: the free clients that are the fastest."""
    return sorted(free, key=lambda client: (seconds[client], client))[:draws]


def by_hand(world, rounds, concurrency, buffer, absorb, mu=0.0, timeout=None, most=50, seed=0):
    """Yield model, clock and rows (client, received, staleness) after each absorb of an asynchronous run."""
    x, now, number, version, air = np.full(D, 2.0), 0.0, 0, 0, []
    for _ in range(rounds):
        window = [flight for flight in air if version - flight["version"] > most]
        air = [flight for flight in air if flight not in window]
        for flight in window:
            flight["arrives"] = False
        landed, draw = 0, True
        while True:
            if draw:
                number += 1
                p = world(number)
                busy = {flight["client"] for flight in air + window}
                free = [c for c in range(N) if p.available[c] and c not in busy]
                luck = rng_for(seed, number, Stream.LINK).random(N)
                for client in fastest(p.latency, free, concurrency - len(air) - landed):
                    seconds, arrives = p.latency[client], luck[client] >= p.loss_rate[client]
                    if timeout is not None and (seconds > timeout or not arrives):
                        seconds, arrives = timeout, False
                    flight = {"client": client, "version": version, "due": now + seconds, "arrives": arrives}
                    air.append(flight | {"start": x, "steps": p.steps[client], "weight": p.weight[client]})
            if landed >= buffer or not air:
                break
            now = min(flight["due"] for flight in air)
            ended = [flight for flight in air if flight["due"] == now]
            air = [flight for flight in air if flight["due"] > now]
            window += ended
            landed += sum(flight["arrives"] for flight in ended)
            draw = landed < buffer and not all(flight["arrives"] for flight in ended)
            if not air and not draw:
                break
        window.sort(key=lambda flight: flight["client"])
        for flight in window:
            y = flight["start"]
            for _ in range(flight["steps"]):
                y = y - LR * (y - PROBLEM.optimum[flight["client"]] + mu * (y - flight["start"]))
            flight["y"], flight["staleness"] = y, version - flight["version"]
        x, version = absorb(x, [flight for flight in window if flight["arrives"]]), version + 1
        yield x, now, [(f["client"], f["arrives"], f["staleness"]) for f in window]


def mixed(x, landed):
    """FedAsync: x ← (1 − α_t) x + α_t y, α_t = 0.6/√(1 + τ); no two land together here."""
    for flight in landed:
        alpha = 0.6 / np.sqrt(1 + flight["staleness"])
        x = (1 - alpha) * x + alpha * flight["y"]
    return x


def buffered(x, landed):
    """FedBuff: the weighted mean of the displacements, each divided by √(1 + τ)."""
    total = sum(flight["weight"] for flight in landed)
    moves = [f["weight"] / total / np.sqrt(1 + f["staleness"]) * (f["y"] - f["start"]) for f in landed]
    return x + sum(moves) if moves else x


def windy(number):
    """Return heavy-tailed seconds, lost answers and absent clients, redrawn for each dispatch."""
    rng = np.random.default_rng(number)
    plain = {"latency": rng.lognormal(0, 1, N), "steps": rng.integers(1, 5, N), "up_rate": None, "down_rate": None}
    return clients(**plain, loss_rate=0.5 * rng.random(N), available=rng.random(N) < 0.8)


def calm(number):
    """Return the same without losses and absences."""
    return replace(windy(number), loss_rate=np.zeros(N), available=np.ones(N, bool))


@pytest.mark.parametrize(
    ("world", "concurrency", "buffer", "timeout", "most"),
    [
        (calm, 4, 1, None, 50),
        (windy, 4, 1, None, 50),
        (windy, 5, 2, 1.5, 50),
        (windy, 6, 3, None, 1),
        (calm, 5, 2, None, 0),
    ],
)
@pytest.mark.parametrize("rule", ["fedasync", "fedbuff"])
def test_asynchronous_rounds_are_the_event_loop_written_by_hand(rule, world, concurrency, buffer, timeout, most):
    pacing = Buffered(concurrency, 1 if rule == "fedasync" else buffer, timeout, most)
    mean = aggregate.Stale(aggregate.Mean())
    parts = (Prox(0.3), aggregate.Mixing(0.6)) if rule == "fedasync" else (Prox(0.0), mean)
    method = fw.Method(sample.Deadline(3), *parts, pacing=pacing)
    how = (mixed, 0.3) if rule == "fedasync" else (buffered, 0.0)
    hand = by_hand(world, 25, concurrency, pacing.buffer, *how, timeout, most)
    stale = 0
    for (state, happened), (x, clock, rows) in zip(play(method, 25, world), hand, strict=True):
        r = happened.replies
        assert list(zip(happened.cohort.ids, r.received, r.staleness, strict=True)) == rows
        assert state.clock == clock
        assert np.allclose(state.x, x, rtol=0, atol=1e-12)
        stale = max(stale, r.staleness[r.received].max(initial=0))
    assert stale == 0 if most == 0 else stale >= 1


def test_late_answers_land_in_a_later_round():
    """By hand: three clients, the third takes 2.5 s, rounds close after two answers or 1 s."""
    world = clients(3, latency=np.array([0.5, 0.8, 2.5]), up_rate=None, down_rate=None)
    problem = Quadratics(PROBLEM.optimum[:3])
    method = fw.Method(
        sample.Uniform(3), aggregator=aggregate.Stale(aggregate.Anonymous()), pacing=Synchronous(1.0, late="discount")
    )
    engine = worlds.quadratic_simulator(problem, method.solver, 0, world.weight)
    state, x, start = first_state(method, np.ones(D), world, D), np.ones(D), np.ones(D)
    rows = [([0, 1], 1.0), ([0, 1], 1.8), ([0, 1, 2], 2.6), ([0, 1], 3.6)]
    # Round 2 asks only 0 and 1 and ends with the slower of them; the third, sent at 0, lands in round 3.
    for asked, clock in rows:
        state, happened = run_round(method, state, world, engine, LR, 0)
        away = problem.optimum - x
        u = (1 - (1 - LR) ** world.steps)[:, None] * away
        if 2 in asked:
            u[2] = (1 - (1 - LR) ** world.steps[2]) * (problem.optimum[2] - start) / np.sqrt(1 + 2)
        x = x + u[asked].sum(0) / len(asked)
        assert happened.cohort.ids.tolist() == asked
        assert state.clock == pytest.approx(clock)
        assert np.allclose(state.x, x, atol=1e-12)


# Exact enumeration of what is drawn and who lands first

CHOOSE = []


def every_path(run):
    """Yield (probability, result) of ``run`` for every path of the choices that it makes."""
    todo = [()]
    while todo:
        prefix, taken, chance = todo.pop(), [], [1.0]

        def choose(chances, prefix=prefix, taken=taken, chance=chance):
            i = prefix[len(taken)] if len(taken) < len(prefix) else 0
            if len(taken) >= len(prefix):
                todo.extend((*taken, j) for j in range(1, len(chances)))
            taken.append(i)
            chance[0] *= chances[i]
            return i

        CHOOSE[:] = [choose]
        yield run(), chance[0]


@fw.settings
class Enumerated(Sampler):
    """Draws of which each is enumerated: with replacement by p ∝ ω, or all sets equally likely."""

    per_round: int
    replacement: bool

    def draw(self, state, view, rng):
        p = view.population
        free, chances = np.flatnonzero(p.available), p.weight[p.available] / max(p.weight[p.available].sum(), 1e-300)
        if not free.size:
            return empty_cohort()
        if self.replacement:
            who = [free[CHOOSE[0](chances)] for _ in range(self.per_round)]
            ids, count = np.unique(who, return_counts=True)
            return Cohort(ids=ids, count=count, expected=self.per_round * chances[np.searchsorted(free, ids)])
        sets = list(combinations(free.tolist(), min(self.per_round, free.size)))
        ids = np.array(sets[CHOOSE[0](np.full(len(sets), 1 / len(sets)))])
        return Cohort(ids=ids, count=np.ones(ids.size, int), expected=np.full(ids.size, ids.size / free.size))


class AnyOrder(Simulator):
    """Links of which every order of arrival is equally likely, whoever it is; later dispatches are as slow, or fast."""

    rate, pace, sent = 0.0, 1.0, 0

    def send(self, assignment):
        sent, k = super().send(assignment), assignment.cohort.ids.size
        self.sent += 1
        orders = list(permutations(range(1, k + 1)))
        seconds = np.array(orders[CHOOSE[0](np.full(len(orders), 1 / len(orders)))], float) * self.pace**self.sent
        arrives = [not self.rate or CHOOSE[0]([1 - self.rate, self.rate]) == 0 for _ in range(k)]
        return Sent(np.array(arrives), seconds, *sent[2:])


M = 4
TINY = worlds.equal_clients(M, weight=np.array([0.4, 0.3, 0.2, 0.1]))


def weights_of(happened):
    """Return each client's weight in what inverse-probability weighting makes of a round."""
    cohort, replies, found = happened.cohort, happened.replies, np.zeros(M)
    found[cohort.ids] = TINY.weight[cohort.ids] * cohort.count / cohort.expected * replies.received
    return found


def enumerate_rounds(replacement, pacing, rounds, **engine_facts):
    """Yield what happens in so many rounds on every path, with its probability."""
    method = fw.Method(Enumerated(2, replacement), aggregator=aggregate.InverseProbability(), pacing=pacing).widened

    def run():
        engine = AnyOrder(QuadraticTrainer(Quadratics.random(M, 2), method.solver, 0, TINY.weight))
        vars(engine).update(engine_facts)
        state, found = first_state(method, np.zeros(2), TINY, 2), []
        for _ in range(rounds):
            state, happened = run_round(method, state, TINY, engine, LR, 0)
            found.append(happened)
        return found

    return every_path(run)


def mean_weights(replacement, concurrency, buffer):
    """Return E[weight] of every client in the first absorb."""
    mean, total = np.zeros(M), 0.0
    for (happened,), chance in enumerate_rounds(replacement, Buffered(concurrency, buffer), 1):
        mean, total = mean + chance * weights_of(happened), total + chance
    assert total == pytest.approx(1)
    return mean


@pytest.mark.parametrize(
    ("replacement", "concurrency", "buffer"),
    [(False, 2, 1), (False, 3, 1), (False, 3, 2), (False, 3, 3), (True, 2, 1), (True, 3, 3)],
)
def test_weights_of_an_absorb_are_unbiased_for_whoever_lands_first(replacement, concurrency, buffer):
    """Whatever part of a draw event lands, E[weight] = ω: the sum over all clients is estimated without bias."""
    assert np.allclose(mean_weights(replacement, concurrency, buffer), TINY.weight, atol=1e-14)


def test_a_client_drawn_twice_lands_once_which_is_a_small_bias():
    """Of draws a, a, b either client is as likely to be the first; by draws a would be twice as likely.

    Under p = ω the weights of an absorb always sum to one; what is enumerated leans towards equal weights.
    """
    mean = mean_weights(True, 3, 1)
    assert mean.sum() == pytest.approx(1)
    assert np.allclose(mean, [0.38, 0.3, 0.21, 0.11], atol=1e-14)


@pytest.mark.parametrize("replacement", [False, True])
def test_the_next_weights_are_unbiased_for_those_who_were_free(replacement):
    """New answers overtake those that are under way: given who those are, E[weight] = ω of the others, else 0."""
    means: dict[tuple[int, ...], list] = {}
    for (first, second), chance in enumerate_rounds(replacement, Buffered(2, 1), 2, pace=0.1):
        busy = tuple(first.assignment.landing.busy.tolist())
        mine = means.setdefault(busy, [np.zeros(M), 0.0])
        mine[0] += chance * weights_of(second)
        mine[1] += chance
    assert len(means) > 1
    for busy, (mean, chance) in means.items():
        free = np.isin(np.arange(M), busy, invert=True)
        assert np.allclose(mean / chance, TINY.weight * free, atol=1e-14)


def test_lost_answers_cost_all_clients_the_same_share():
    """Equally lossy links: every client keeps the same share of its weight, though a lost seat is filled again."""
    mean = np.zeros(M)
    for (happened,), chance in enumerate_rounds(False, Buffered(2, 2), 1, rate=0.3):
        mean += chance * weights_of(happened)
    share = mean / TINY.weight
    assert np.allclose(share, share[0], atol=1e-14)
    assert 0.6 < share[0] < 1


# What a client trains with when it lands is what it was sent


class Recording(QuadraticTrainer):
    """A trainer that takes down with what each client of each dispatch trains."""

    def train(self, x, jobs):
        models = np.broadcast_to(of_each(x, jobs), (jobs.client.size, D))
        self.most = max(getattr(self, "most", 0), 1 if x.ndim == 1 else len(x))
        for i, key in enumerate(zip(jobs.client.tolist(), jobs.dispatch.tolist(), strict=True)):
            sent = None if jobs.broadcast is None else of_one(jobs.broadcast, jobs, i)
            start = models[i] if jobs.starts is None else jobs.starts[i]
            rows = (models[i], start, sent, None if jobs.memory is None else jobs.memory[i], jobs.steps[i])
            self.trained[key] = [None if row is None else np.asarray(row).tobytes() for row in rows]
        return super().train(x, jobs)


class Remembering(Simulator):
    """A simulator that takes down what each client of each dispatch is sent, and has at home."""

    def send(self, assignment):
        context, p, x = assignment.context, assignment.population, assignment.x
        for client in assignment.cohort.ids.tolist():
            one = np.array([client])
            memory = None if context.memory is None else context.memory[one][0]
            start = x
            if context.kept is not None and context.kept.written[client]:
                own = context.kept[one][0]
                start = x if np.isnan(own).all() else np.where(np.isnan(own), x, own)
            rows = (x, start, context.broadcast, memory, p.steps[client])
            self.asked[client, assignment.dispatch] = [None if r is None else np.asarray(r).tobytes() for r in rows]
        return super().send(assignment)


@pytest.mark.parametrize("name", ["scaffold", "feddd_acs", "fedbuff"])
def test_a_client_trains_with_what_it_was_sent_however_late_it_lands(name):
    """The model and the broadcast of its version; its own memory; what it keeps, also when others are refreshed."""
    method = replace(parse(name, 3), pacing=Buffered(6, 2)).widened
    if name == "feddd_acs":
        method = replace(method, upload=replace(method.upload, refresh=2))
    trainer = Recording(PROBLEM, method.solver, 0, WEIGHT)
    engine = Remembering(trainer, method.upload)
    trainer.trained, engine.asked = {}, {}
    state = first_state(method, np.full(D, 2.0), lognormal(1), D)
    for _ in range(25):
        state, _ = run_round(method, state, lognormal, engine, LR, 0)
    assert trainer.most > 1  # several versions in one call
    assert len(trainer.trained) >= 40
    for key, rows in trainer.trained.items():
        assert rows == engine.asked[key]


def test_a_refresh_leaves_those_under_way_what_they_keep():
    table = Rows.zeros(5, 2).replaced(np.array([1, 2, 4]), np.arange(6.0).reshape(3, 2))
    cohort, replies = worlds.cohort([1]), worlds.replies(np.ones((1, 2)), kept=np.full((1, 2), 9.0))
    after = commit_memories({"kept": table}, cohort, replies, True, np.array([0, 2]))["kept"]
    assert after.written.tolist() == [False, False, True, False, False]
    assert after[np.array([2])].tolist() == [[2.0, 3.0]]
