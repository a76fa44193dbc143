"""Parts that return rubbish: one sentence that names the part, before the state is touched."""

import hashlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedweave as fw
from fedweave.core.records import Cohort, Replies
from fedweave.core.roles import Aggregator, Pacing, Parcel, Sampler, ServerOptimizer, Solver, System, Upload
from fedweave.data.deal import Shares
from fedweave.data.partition import Partition
from fedweave.data.synthetic import quadratics
from fedweave.engine.pool.processes import Workers
from fedweave.round import measures, run_round
from fedweave.runs.own_parts import COLUMNS, OPTIONAL
from fedweave.runs.session import prepare

WRONG = 2000
CLIENTS, DIM = 6, 4
RATES = itertools.count(0.1, 1e-6)  # of each round another one: solvers are asked again, not read from a table
DATA = quadratics(CLIENTS, DIM)


class Faulty:
    """A part that is right but for one verb, whose result a test replaces."""

    place, spoil = None, None  # which class and verb, and what becomes of the right result

    def spoiled(self, verb, right):
        return Faulty.spoil(right) if (type(self).__name__, verb) == Faulty.place else right


def breaking(cls, verb):
    """Return a method that does what the class does and lets the test spoil the result."""

    def call(self, *args, **kwargs):
        return self.spoiled(verb, getattr(super(cls[0], self), verb)(*args, **kwargs))

    call.__name__ = verb
    return call


def faulty(name, base, *verbs, **more):
    """Return settings that do what ``base`` does, but for what a test spoils."""
    cls = [None]
    body = {"__module__": __name__, "__annotations__": {}, **{v: breaking(cls, v) for v in verbs}, **more}
    cls[0] = fw.settings(type(name, (Faulty, base), body))
    return cls[0]


class Half(Upload):
    """The first half of the update; clients keep the rest, of which the server hears nothing."""

    def size(self, model, budget):
        return model.nbytes // 2

    def allocate(self, state, view, cohort):
        return np.full(cohort.ids.size, 0.5)

    def encode(self, update, x, start, budget, kept, rng, model):
        return Parcel(update[: update.size // 2].tobytes(), x + update)

    def decode(self, payload, model):
        half = np.frombuffer(payload, model.dtype)
        return np.append(half, 0 * half), np.arange(2 * half.size) < half.size


class Broadcasts(Aggregator):
    """FedAvg, with a vector for the clients, a model for each and a measure."""

    memory_kind = "walks"

    def init(self, population, dim):
        return {"sum": np.zeros(dim)}

    def broadcast(self, state):
        return state["sum"]

    def models(self, state, x, ids):
        return np.tile(x, (ids.size, 1))

    def coefficients(self, view, law):
        return view.population.weight * law

    def combine(self, state, view, cohort, replies):
        direction, _ = fw.aggregate.Mean().combine({}, view, cohort, replies)
        return direction, {"sum": state["sum"] + direction}

    def measure(self, state, view):
        return {"length": float(np.abs(state["sum"]).max())}


class Walks(Solver):
    """Plain descent, with a state and a memory."""

    memory_kind = "walks"

    def begin(self, y):
        return (0 * y,)

    def direction(self, state, g, y, x, lr, t):
        return g, (state[0] + g,)

    def memory_change(self, u, sent, reach, share):
        return u / reach

    def effort(self, steps, lr):
        return steps.astype(float)


class Steps(ServerOptimizer):
    """Plain descent that counts."""

    def init(self, dim):
        return {"count": np.zeros(1)}

    def step(self, state, x, direction):
        return x + direction, {"count": state["count"] + 1}


class Remembers(Sampler):
    """Every client that is there, with a state."""

    def init(self, population):
        return {"seen": np.zeros(population.size)}

    def law(self, state, view):
        return view.population.available.astype(float)

    def draw(self, state, view, rng):
        ids = np.flatnonzero(view.population.available)
        return Cohort(ids=ids, count=np.ones(ids.size, int), expected=np.ones(ids.size))

    def learn(self, state, view, cohort, replies):
        return {"seen": state["seen"] + view.population.available}


class World(System):
    """The last client is away."""

    def population(self, base, round, seed):
        return replace(base, available=np.arange(base.size) < base.size - 1)


class Deals(Partition):
    """One sample to each client."""

    def split(self, data, rng):
        each = [np.array([i]) for i in range(CLIENTS)]
        return Shares(train=each, test=list(each))


class Waits(Pacing):
    """Wait for all."""

    def widen(self, sampler):
        return sampler

    def close(self, replies, cohort):
        return replies


OddSampler = faulty("OddSampler", Remembers, "init", "required_fields", "law", "draw", "learn")
OddSolver = faulty("OddSolver", Walks, "begin", "begin_with_memory", "direction", "memory_change", "effort")
OddAggregator = faulty(
    "OddAggregator", Broadcasts, "init", "broadcast", "models", "combine", "coefficients", "step_length", "measure",
    masks=True, sends_own_models=True,
)  # fmt: skip
OddServer = faulty("OddServer", Steps, "init", "step")
OddUpload = faulty(
    "OddUpload",
    Half,
    "init",
    "allocate",
    "size",
    "encode",
    "decode",
    "start",
    "refreshes",
    "learn",
    "measure",
    masks=True,
    keeps=True,
)
OddPacing = faulty("OddPacing", Waits, "widen", "close")
OddWorld = faulty("OddWorld", World, "population")
OddPartition = faulty("OddPartition", Deals, "split")


def odd_method():
    parts = {"aggregator": OddAggregator(), "server": OddServer(), "upload": OddUpload(), "pacing": OddPacing()}
    return fw.Method(OddSampler(), OddSolver(), **parts, name="odd")


def experiment(**changes):
    plain = {"data": DATA, "partition": OddPartition(clients=CLIENTS), "system": OddWorld(), "rounds": 3, "workers": 1}
    return fw.Experiment(method=odd_method(), **(plain | changes))


def digest(state):
    """Return a digest of all that a state holds."""
    sha = hashlib.sha256(state.x.tobytes() + repr((state.round, state.clock)).encode())
    for part in (state.sampler, state.aggregator, state.server, state.upload, state.clients):
        for name, value in sorted(part.items()):
            array = value if isinstance(value, np.ndarray) else value[np.arange(CLIENTS)]
            sha.update(name.encode() + array.tobytes())
    return sha.hexdigest()


RUBBISH = st.one_of(  # wrong wherever an array, a record or a number is wanted
    st.none(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.floats(), max_size=4),
    st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=3),
    st.dictionaries(st.integers(), st.integers(), min_size=1, max_size=2),
    st.builds(object),
    st.sampled_from([np.array(["a", "b"]), np.array([None, 1], object), np.ones((2, 2, 2), complex), Cohort, print]),
)
SOMETHING = RUBBISH.filter(lambda value: value is not None)
DTYPES = ["S3", "U3", "complex64", "complex128", "object", "datetime64[s]"]
NOT_FINITE = [np.nan, np.inf, -np.inf]


def always(values):
    """Return spoilers that return one of these values, whatever would be right."""
    return values.map(lambda value: lambda right: value)


def spoilers(*functions):
    return st.sampled_from(functions)


def recast(dtype):
    return lambda right: np.zeros(np.shape(right), dtype)


def filled(value):
    return lambda right: np.full(np.shape(right), value)


LENGTHS = (lambda v: v[:1], lambda v: np.append(v, v[:1]), lambda v: v[:-1], lambda v: np.stack([v, v]), lambda v: v[0])
SHAPES = spoilers(*LENGTHS, *map(recast, DTYPES))
LOOSE = spoilers(lambda v: v.tolist(), tuple, lambda v: memoryview(np.ascontiguousarray(v)))
VECTOR = st.one_of(always(SOMETHING), SHAPES, LOOSE, spoilers(recast(int), recast(bool)))
BAD_VECTOR = st.one_of(VECTOR, spoilers(*map(filled, NOT_FINITE)))
STATE = always(
    st.one_of(
        RUBBISH,
        st.dictionaries(st.text("ab", min_size=1), RUBBISH, min_size=1, max_size=2),
        st.dictionaries(st.sampled_from(["../x", "a b", "", "a/b", 3]), st.just(np.ones(2)), min_size=1, max_size=2),
        st.sampled_from([{"a": np.zeros(2, dtype)} for dtype in (*DTYPES, "longdouble")]),
        st.sampled_from([{"a": 3.0}, {"a": [1.0, 2.0]}, {"a": np.float64(1)}]),
    )
)
NO_PAIR = always(st.one_of(RUBBISH, st.sampled_from([(), (1, 2, 3)])))


def pair(first, second):
    """Return spoilers of the pair itself, of its first or of its second part."""
    return st.one_of(
        NO_PAIR,
        first.map(lambda spoil: lambda right: (spoil(right[0]), right[1])),
        second.map(lambda spoil: lambda right: (right[0], spoil(right[1]))),
    )


def field(name, spoilers_of_it, change=replace):
    """Return spoilers of one field of a record."""
    return spoilers_of_it.map(lambda spoil: lambda right: change(right, **{name: spoil(getattr(right, name))}))


def asked(*ids):
    """Return a spoiler that asks these clients, once each."""
    return lambda right: Cohort(ids=np.array(ids), count=np.ones(len(ids), int), expected=np.ones(len(ids)))


WHOLE = st.one_of(always(RUBBISH), SHAPES, LOOSE, spoilers(recast(float), recast(bool), filled(np.nan)))
LAST = CLIENTS - 1  # who is away
COHORT = st.one_of(
    always(RUBBISH),
    spoilers(*(asked(*ids) for ids in ([1, 0], [0, 0], [0, CLIENTS], [-1, 0], [LAST], [0, 10**6], [0.0, 1.0]))),
    field("ids", WHOLE),
    field("count", st.one_of(WHOLE, spoilers(filled(0), filled(-1)))),
    field("expected", st.one_of(always(RUBBISH), SHAPES, LOOSE, spoilers(*map(filled, [*NOT_FINITE, 0.0, -1.0])))),
    field("probed", always(st.sampled_from([-1, 1.5, np.nan, "3", None, [1]]))),
)


def column(name):
    """Return spoilers of a column of the population: of its form, and by values that it must not have."""
    wrong = [*NOT_FINITE, -1.0] + ([0.0] if name in ("samples", "steps", "batch_size", "up_rate", "down_rate") else [])
    wrong += {"loss_rate": [1.5], "weight": [1.5, 0.0], "steps": [2.5, 1e12], "latency": [1e300]}.get(name, [])
    found = always(SOMETHING) if name in OPTIONAL else always(RUBBISH)
    return st.one_of(found, st.one_of(SHAPES, spoilers(*map(filled, wrong))).map(lambda f: lambda old: f(_there(old))))


def _there(old):
    return np.ones(CLIENTS) if old is None else old


def share(name, parts):
    """Return spoilers of one client's samples."""
    return st.tuples(parts, st.integers(0, LAST)).map(
        lambda drawn: (
            lambda right: right._replace(
                **{name: [drawn[0] if i == drawn[1] else part for i, part in enumerate(getattr(right, name))]}
            )
        )
    )


NO_SAMPLES = [np.array([0.0]), np.array([[0]]), np.array([-1]), np.array([10**6]), [0], (0,), np.array([True]), 0]
SHARES = st.one_of(
    always(RUBBISH),
    field("train", always(RUBBISH), Shares._replace),
    field("test", always(RUBBISH), Shares._replace),
    share("train", st.one_of(RUBBISH, st.sampled_from([*NO_SAMPLES, np.array([], int), np.array([0, 1])]))),
    share("test", st.one_of(RUBBISH, st.sampled_from(NO_SAMPLES))),
    spoilers(
        lambda right: Shares(right.train[:-1], right.test[:-1]),
        lambda right: Shares([*right.train, right.train[0]], [*right.test, right.test[0]]),
        lambda right: Shares(right.train, right.test[:-1]),
    ),
)
PARCEL = st.one_of(
    always(RUBBISH),
    field("payload", always(st.one_of(RUBBISH, st.just(b"1234567"))), Parcel._replace),
    field("kept", VECTOR, Parcel._replace),
)
MASK = st.one_of(always(SOMETHING), SHAPES, LOOSE, spoilers(recast(float), recast(int)))
REPLIES = st.one_of(
    always(RUBBISH),
    field("received", st.one_of(always(RUBBISH), SHAPES, spoilers(recast(float))), Replies._replace),
    field("updates", st.one_of(always(RUBBISH), spoilers(lambda v: v[:-1], lambda v: v[:, :-1])), Replies._replace),
    field("seconds", st.one_of(VECTOR, spoilers(*map(filled, [*NOT_FINITE, -1.0]))), Replies._replace),
)
MEASURES = always(
    st.one_of(
        RUBBISH,
        st.dictionaries(st.text("ab", min_size=1), RUBBISH, min_size=1, max_size=2),
        st.sampled_from([{"round": 1.0}, {"accuracy": 0.5}, {3: 1.0}, {"": 1.0}, {"a b": 1.0}]),
    )
)
NO_SIZE = always(st.one_of(RUBBISH, st.sampled_from([-1, 1.5, np.nan, np.array([8])])))
NO_TUPLE = always(RUBBISH.filter(lambda value: not isinstance(value, list)))
NO_MODELS = st.one_of(always(SOMETHING), LOOSE, spoilers(lambda v: v[:-1], lambda v: v[:, :-1], lambda v: v[0]))
NOT_EMPTY = RUBBISH.filter(lambda value: not (isinstance(value, list) and not value))
NO_FIELDS = always(st.one_of(NOT_EMPTY, st.sampled_from([("variance", 3), 3, (None,), ("weight",)])))
NOT_LIKE = st.one_of(always(RUBBISH), SHAPES, LOOSE)
PLACES = {
    "OddSampler": {"init": STATE, "required_fields": NO_FIELDS, "law": VECTOR, "draw": COHORT, "learn": STATE},
    "OddSolver": {
        "begin": NO_TUPLE, "begin_with_memory": NO_TUPLE, "direction": pair(NOT_LIKE, NO_TUPLE),
        "memory_change": NOT_LIKE, "effort": NOT_LIKE,
    },
    "OddAggregator": {
        "init": STATE, "broadcast": VECTOR, "models": NO_MODELS, "combine": pair(BAD_VECTOR, STATE),
        "coefficients": VECTOR, "step_length": always(st.one_of(RUBBISH, st.sampled_from(NOT_FINITE))),
        "measure": MEASURES,
    },
    "OddServer": {"init": STATE, "step": pair(BAD_VECTOR, STATE)},
    "OddUpload": {
        "init": STATE, "allocate": st.one_of(always(SOMETHING), SHAPES, spoilers(*map(filled, NOT_FINITE))),
        "size": NO_SIZE, "encode": PARCEL, "decode": pair(VECTOR, MASK), "start": VECTOR, "learn": STATE,
        "refreshes": always(RUBBISH), "measure": MEASURES,
    },
    "OddPacing": {"widen": always(RUBBISH), "close": REPLIES},
    "OddWorld": {"population": st.one_of(always(RUBBISH), *(field(name, column(name)) for name in COLUMNS))},
    "OddPartition": {"split": SHARES},
}  # fmt: skip
WRONG_PART = st.sampled_from([(part, verb) for part, verbs in PLACES.items() for verb in verbs]).flatmap(
    lambda place: st.tuples(st.just(place), PLACES[place[0]][place[1]])
)


@pytest.fixture(scope="module")
def begun():
    """A run after its first round, in which every part was right."""
    session = prepare(experiment(), Workers(1))
    state, _ = one_round(session, session.start)
    assert not np.array_equal(state.x, session.start.x)
    return session, state


def one_round(session, state):
    """Do what a run does in a round, up to the row that it records."""
    world, lr = session.world(state.round + 1), next(RATES)
    after, happened = run_round(session.method, state, world, session.engine, lr, 0, calibrate=True)
    if not happened.abandoned:
        measures.of_parts(session.method, after, happened)
    return after, happened


@settings(max_examples=WRONG, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(wrong=WRONG_PART)
def test_a_wrong_part_is_named_in_one_sentence_before_the_state_is_touched(begun, wrong):
    (Faulty.place, Faulty.spoil), (session, state) = wrong, begun
    part, verb = Faulty.place
    before = digest(state)
    try:
        if verb in ("init", "required_fields", "widen", "split"):
            prepare(experiment(), Workers(1))
            said = "accepted"
        else:
            after, happened = one_round(session, state)
            said = happened.abandoned if np.array_equal(after.x, state.x) else "accepted"
    except fw.BadInput as e:
        said = str(e)
    finally:
        Faulty.place = None
    assert part in said
    assert said.isprintable()
    assert len(said) < 500
    assert "accepted" not in said
    assert digest(state) == before


VANDALS = {  # parts that write into what they are given
    "state of a sampler": ("OddSampler", "draw", lambda state, view, rng: state["seen"].sort()),
    "model": ("OddSampler", "draw", lambda state, view, rng: view.x.fill(9)),
    "nominal clients": ("OddSampler", "draw", lambda state, view, rng: view.population.weight.fill(9)),
    "updates": ("OddAggregator", "combine", lambda state, view, cohort, replies: replies.updates.fill(9)),
    "state of an aggregator": ("OddAggregator", "combine", lambda state, view, cohort, replies: state["sum"].fill(9)),
    "model at the server": ("OddServer", "step", lambda state, x, direction: x.fill(9)),
    "model at the upload": ("OddUpload", "allocate", lambda state, view, cohort: view.x.fill(9)),
    "clients of a world": ("OddWorld", "population", lambda base, round, seed: base.steps.fill(9)),
}


@pytest.mark.parametrize(("part", "verb", "write"), VANDALS.values(), ids=VANDALS)
def test_a_part_that_writes_into_what_it_is_given_is_named(part, verb, write, begun, monkeypatch):
    session, state = begun
    before, base = digest(state), session.base.steps.copy()
    monkeypatch.setattr(globals()[part], verb, lambda self, *args: write(*args))
    with pytest.raises(fw.BadInput, match=rf"{part}\.\S+ must not change the arrays it is given"):
        one_round(session, state)
    assert digest(state) == before
    assert np.array_equal(session.base.steps, base)


def test_a_part_that_writes_into_an_empty_state_changes_nothing(begun, monkeypatch):
    session, state = begun
    monkeypatch.setattr(OddUpload, "allocate", lambda self, state, view, cohort: state.update(a=np.ones(2)))
    before = digest(state)
    one_round(session, state)
    assert digest(state) == before


def test_an_error_of_a_part_says_whose_it_is(begun, monkeypatch):
    session, state = begun
    monkeypatch.setattr(OddSampler, "learn", lambda self, *_: {}["missing"])
    with pytest.raises(KeyError) as error:
        one_round(session, state)
    assert error.value.__notes__ == ["In OddSampler.<lambda>."]


def test_columns_of_every_run_are_taken():
    e = fw.Experiment("fedbuff", DATA, "natural", rounds=1, workers=1, evaluate="train,test", client_eval=1)
    assert set(fw.run(e).rounds) == set(measures.TAKEN)
