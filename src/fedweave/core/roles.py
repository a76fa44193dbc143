"""The verbs of a federated round: what each part of a method must do. Parts are frozen; state goes in and comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from fedweave.core.records import Array, Assignment, Cohort, Layout, Population, Replies, State, View
from fedweave.core.returned import check_solver, check_vector

if TYPE_CHECKING:
    from fedweave.core.flights import Ended, Flights, Sent
    from fedweave.upload.codec import ClientModel


class Sampler(ABC):
    """Who takes part."""

    law_known: ClassVar[bool] = True  # whether law() is known and draw() fills Cohort.expected

    def init(self, population: Population) -> State:
        """Return what the sampler remembers before the first round."""
        return {}

    def required_fields(self) -> tuple[str, ...]:
        """Return which fields of the replies it cannot do without, beside the updates: a client must report them.

        Clients measure "variance", that of their stochastic gradients, only where it is named here.
        """
        return ()

    def oracle(self) -> bool:
        """Return whether it must know what every client would answer, which no real fleet can be asked."""
        return False

    def cohort_size(self) -> int | None:
        """Return how many draws a cohort has, or fewer where fewer clients are available; None: it varies."""
        return getattr(self, "per_round", None)

    def law(self, state: State, view: View) -> Array:
        """Return E[count] of every client (N,) this round; nan where the choice is greedy."""
        return np.full(view.population.size, np.nan)

    @abstractmethod
    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        """Choose this round's cohort among the available clients."""

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        """Take in what the cohort answered: adaptive samplers live here.

        Of a round that is abandoned, as with fewer than ``min_answers``, what is returned here is dropped: the state
        stays as it was, like the model.
        """
        return state


class Solver(ABC):
    """How a client walks: the training loop is written once, a solver only bends the gradient.

    The arrays are NumPy or torch, one client (D,) or several (c, D); use only operators on them. ``y`` is
    changed in place after each step: a solver that remembers it must copy it.

    A solver may keep one vector per client from one participation to the next. It then begins with
    ``begin_with_memory`` and says with ``memory_change`` what to add to the vector, which takes effect when the answer
    is received: a lost one changes nothing.
    """

    memory_kind: ClassVar[str] = ""  # what clients keep, in words; the aggregator must expect the same
    uploads_memory: ClassVar[bool] = False  # whether they send the server how it changed
    sends_last_step: ClassVar[bool] = False  # whether the update is the last local step alone, not the whole walk

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if not cls.__module__.startswith("fedweave."):
            check_solver(cls)

    @abstractmethod
    def begin(self, y: Any) -> tuple[Any, ...]:
        """Return the solver's state at the start of one participation: arrays shaped like ``y``."""

    @abstractmethod
    def direction(
        self, state: tuple[Any, ...], g: Any, y: Any, x: Any, lr: float, t: int
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return d of the step y ← y − lr·d at local step t = 0, 1, …, and the new state."""

    def begin_with_memory(self, y: Any, memory: Any, sent: Any, share: Any) -> tuple[Any, ...]:
        """Return the solver's state at the start for a client that keeps ``memory``, zero before its first answer.

        ``sent`` is the vector that the aggregator sends with the model, ``share`` is N ω_i, the client's weight over
        the mean one: a number, or a column (c, 1).
        """
        return self.begin(y)

    def memory_change(self, u: Any, sent: Any, reach: Any, share: Any) -> Any:
        """Return what to add to the memory after a participation with update u = y − x; ``reach`` is η ‖a‖₁."""
        return 0 * u

    def effort(self, steps: Array, lr: float) -> Array:
        """Return ‖a‖₁ for each number of steps: how far the solver carries a constant gradient, in units of lr.

        For solvers that are linear in the gradients (all but Adam) u = −η Σ_t a_t g_t, and a constant gradient 1
        gives |u|/η = Σ_t a_t exactly, which is ‖a‖₁ where no a_t is negative (η μ ≤ 1 for a proximal pull); so the
        solver itself, run once on that line, is the table.
        """
        top = int(steps.max(initial=1))
        if top <= TABLE:
            return _reach(self, lr, 1 << (top - 1).bit_length())[0][steps]  # rounded up: few tables serve all rounds
        reach, last, ratio = _reach(self, lr, TABLE)
        beyond = np.maximum(steps - TABLE, 0).astype(np.float64)
        grown = beyond if ratio == 1 else ratio * np.expm1(beyond * np.log(ratio)) / (ratio - 1) if ratio > 0 else 0.0
        return reach[np.minimum(steps, TABLE)] + last * grown


Buffer = bytes | bytearray | memoryview

TABLE = 1 << 16  # local steps that are run one by one; what follows is a geometric series


@lru_cache(maxsize=64)
def _reach(solver: Solver, lr: float, top: int) -> tuple[Array, float, float]:
    """Return the distance under a constant gradient after 0, 1, …, top steps, in units of lr, and how it goes on.

    Momentum has settled long before ``TABLE`` steps, and a pull or a decaying step makes each step a fixed ratio of the
    one before: so the last step and that ratio say how far any number of further steps gets.
    """
    reach, step = np.zeros(top + 1), np.zeros(top)
    y, state = np.float64(0), solver.begin(np.float64(0))
    for t in range(top):
        step[t], state = solver.direction(state, np.float64(1), y, np.float64(0), lr, t)
        y = y - lr * step[t]
        reach[t + 1] = -y / lr
    last, half = float(step[-1]), float(step[(top - 1) // 2])
    ratio = (last / half) ** (1 / (top - 1 - (top - 1) // 2)) if top > 1 and last * half > 0 else 0.0
    return reach, last, ratio


class Parcel(NamedTuple):
    """What a client sends of its update, and what it keeps until its next participation."""

    payload: bytes | bytearray
    kept: Array | None = None  # (d,) it takes effect when this answer is received; None: nothing


class Upload(ABC):
    """How an update travels: the server allocates a budget to each client, clients encode, the server decodes.

    A codec is stateless; what it needs from one participation to the next it hands over as ``Parcel.kept``. Vectors
    have the length d of the client's own model, which is the whole model unless the experiment has sub-models.
    """

    masks: ClassVar[bool] = False  # whether entries that were not sent stay out of averages; else they count as zero
    keeps: ClassVar[bool] = False  # whether encode() returns something to keep
    identity: ClassVar[bool] = False  # whether the update travels as it is, so that nothing has to be encoded
    sparse: ClassVar[bool] = False  # whether most entries are not sent and count as zero

    def init(self, population: Population) -> State:
        """Return what the server remembers before the first round."""
        return {}

    def allocate(self, state: State, view: View, cohort: Cohort) -> Array | None:
        """Return each client's budget (k,), such as the share of its model to leave out; None: nothing to allocate."""
        return None

    @abstractmethod
    def size(self, model: ClientModel, budget: float | None) -> int:
        """Return the exact length of the payload, which must not depend on the update: a lost message has it too."""

    def start(self, x: Array, kept: Array) -> Array:
        """Return where a client begins that kept something: at the model ``x``, or where it keeps values at these.

        With ``masks`` entries of ``kept`` are the client's own values, and nan where the server's count (FedDD eq. 5).
        """
        return np.where(np.isnan(kept), x, kept) if self.masks else x

    @abstractmethod
    def encode(
        self,
        update: Array,
        x: Array,
        start: Array,
        budget: float | None,
        kept: Array | None,
        rng: np.random.Generator,
        model: ClientModel,
    ) -> Parcel:
        """Return what a client sends that got the model ``x``, began at ``start`` and arrived at x + update.

        ``kept`` is what it kept at its last received participation, ``rng`` lies at the client's own address.
        """

    @abstractmethod
    def decode(self, payload: Buffer, model: ClientModel) -> tuple[Array, Array | None]:
        """Return the update (d,), and which entries were sent (d,) bool; None: all.

        Payloads come from clients: whatever is not a payload of this codec must be refused as BadInput, before
        anything is allocated by what it claims.
        """

    def contraction(self) -> Upload:
        """Return this codec as ``ErrorFeedback`` uses it.

        It need not be right on average, but what it leaves out must be shorter than the update, or what clients keep
        would grow without bound. Codecs that enlarge what they send say here how not to.
        """
        return self

    def refreshes(self, round: int) -> bool:
        """Return whether every client takes the whole model after this round, and so forgets what it kept."""
        return False

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        """Take in what the cohort answered; dropped, if the round is abandoned."""
        return state

    def measure(self, state: State) -> Mapping[str, float]:
        """Return what is worth recording of the state after a round, by name: columns of the rounds table."""
        return {}


class Pacing(ABC):
    """When the server absorbs what has arrived.

    Where rounds overlap, answers may land in a later round than the one that asked for them (``round.flights``). One
    that is on its way longer than ``timeout`` seconds, or for more than ``most_staleness`` rounds, is given up.
    """

    refills: ClassVar[bool] = False  # whether somebody else is asked at once when an answer is lost
    timeout: float | None = None
    most_staleness: int = 50

    @property
    def overlaps(self) -> bool:
        """Whether an answer may land in a later round."""
        return False

    def misfit(self, sampler: Sampler) -> str:
        """Return why this sampler cannot be used, and what could; "" if it can."""
        return ""

    def seats(self, occupied: int) -> int | None:
        """Return how many draws to ask for while so many are under way or wait; None: as many as the sampler does."""
        return None

    def enough(self) -> float:
        """Return how many landed draws end a round."""
        return np.inf

    def closing(self, seconds: Array, arrives: Array) -> float:
        """Return after how many seconds a round closes that asked clients whose answers take so long."""
        return np.inf

    @abstractmethod
    def widen(self, sampler: Sampler) -> Sampler:
        """Return the sampler that asks as many clients as this pacing needs."""

    @abstractmethod
    def close(self, replies: Replies, cohort: Cohort) -> Replies:
        """Return the replies that count when the round closes; the others are lost."""


class Aggregator(ABC):
    """How the answers become one direction."""

    needs_law: ClassVar[bool] = False  # whether combine() reads Cohort.expected
    masks: ClassVar[bool] = False  # whether combine() goes by Replies.mask, entry by entry
    memory_kind: ClassVar[str] = ""  # what the clients must remember: Solver.memory_kind
    memory_from_updates: ClassVar[bool] = False  # whether it follows what clients remember by their updates alone
    sends_own_models: ClassVar[bool] = False  # whether models() may return some
    needs_drift: ClassVar[bool] = False  # whether combine() reads Replies.drift
    keeps_sum: ClassVar[str] = ""  # "equal" or "data": its state has a sum over all clients, each with 1/N or with ω

    def init(self, population: Population, dim: int) -> State:
        """Return what the aggregator remembers before the first round."""
        return {}

    def joined(self, state: State, ids: Array, round: int) -> State:
        """Return the state after clients were added, of whom it knows what ``init`` does, when this round is done."""
        return state

    def broadcast(self, state: State) -> Array | None:
        """Return the vector (D,) that clients get with the model, if any."""
        return None

    def models(self, state: State, x: Array, ids: Array) -> Array | None:
        """Return the model (k, D) that each of these clients is sent, if not all are sent the server's ``x``.

        A client's update is its displacement from the model that it was sent.
        """
        return None

    @abstractmethod
    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        """Return the direction (D,), a displacement, and the new state."""

    def misfit(self, upload: Upload) -> str:
        """Return why it cannot combine updates that travel by this upload; "" if it can."""
        return ""

    def coefficients(self, view: View, law: Array) -> Array:
        """Return the mean weight c_i of u_i in the direction (N,), over draws and links; nan where nobody knows.

        Normalised, c·‖a‖₁ is the surrogate objective of FedACS eq. 6; ``theory.fixed_point`` says where it leads.
        """
        return np.full(view.population.size, np.nan)

    def measure(self, state: State, view: View) -> Mapping[str, float]:
        """Return what is worth keeping of the state after a round, by name: columns of the rounds table."""
        return {}

    def surrogate(self, state: State) -> Array | None:
        """Return the weights λ̃ (N,) of the last direction where they are not the objective's, for measuring."""
        return None

    def step_length(self, view: View, law: Array) -> float:
        """Return how far a round moves per unit of learning rate and gradient, Σ c_i ‖a_i‖₁ (FedACS I.2)."""
        weights = check_vector(self.coefficients(view, law), view.population.size, self, "coefficients")
        return float(weights @ view.effort)


class ServerOptimizer(ABC):
    """How the server walks along the direction."""

    def init(self, dim: int) -> State:
        """Return what the optimiser remembers before the first round."""
        return {}

    @abstractmethod
    def step(self, state: State, x: Array, direction: Array) -> tuple[Array, State]:
        """Return the new model and state."""


class System(ABC):
    """The simulated world: how much each client works, how long it takes and how often its answer is lost.

    A world that is laid around another one has it in the field ``inner``.
    """

    replaces: ClassVar[tuple[str, ...]] = ()  # which of the nominal "steps" and "batch_size" it sets for every client

    @abstractmethod
    def population(self, base: Population, round: int, seed: int) -> Population:
        """Return this round's clients, from the nominal ones; a pure function of its arguments."""


class Prober(Protocol):
    """Who can ask clients about a model besides training; samplers do while a round is planned."""

    layout: Layout

    def rehearse(self, assignment: Assignment) -> Array:
        """Return the updates (k, D) that the cohort would send, whatever its links."""
        ...

    def gradients(self, x: Array, ids: Array) -> Array:
        """Return these clients' true gradients (k, D) at ``x``, on all their data: a real fleet cannot tell."""
        ...

    def variances(self, round: int, x: Array, ids: Array, population: Population) -> Array:
        """Return the mean squared distance (k,) of their batches' gradients at ``x`` from the mean of these."""
        ...

    def losses(self, x: Array, ids: Array) -> Array:
        """Return the mean loss (k,) of ``x`` on each of these clients' own data."""
        ...


Scores = Mapping[str, Any] | Callable[[], Mapping[str, Any]]


class Engine(Prober, Protocol):
    """Where clients run: the only place with processes and I/O."""

    def train(self, assignment: Assignment) -> Replies:
        """Have the cohort train as assigned, or those that land, each from its own version; return what arrives."""
        ...

    def evaluate(self, x: Array) -> Mapping[str, Any]:
        """Return accuracy, loss and class_accuracy of ``x`` on the common test set."""
        ...

    def evaluate_later(self, x: Array) -> Scores:
        """Return the same, or how to get it once the next round has trained: its workers evaluate beside it."""
        ...

    def evaluate_clients(self, x: Array, ids: Array) -> Array:
        """Return the task's primary metric (k,) of ``x`` on each one's own test samples; nan for who has none."""
        ...


class OverlappingEngine(Engine, Protocol):
    """An engine whose rounds may overlap: clients are asked at one time, and answer at another."""

    def send(self, assignment: Assignment) -> Sent:
        """Ask the cohort, and return what is known of its answers before anyone has trained."""
        ...

    def wait(self, flights: Flights, enough: float, until: float) -> Ended:
        """Return which flights have ended: when so many draws have landed or the first is lost, or at ``until``.

        With ``enough`` infinite, ``until`` alone counts; an engine that does not know beforehand when answers come
        closes the round as the pacing says (``Pacing.closing``) while they come. There is at least one flight.
        ``train`` is then called with those that have landed (``Assignment.landing``).
        """
        ...
