"""Error feedback: nothing but lost answers gets lost, and the optimum is reached where a top-k alone stays away.

And codecs in whole runs: bytes, worker processes, Flower, resume, sub-models, clients that remember.
"""

from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave import flower, methods
from fedweave.aggregate import DynMean, Scaffold
from fedweave.local.quadratic import Quadratics
from fedweave.local.solvers import ControlVariate, Dyn
from fedweave.method import Method
from fedweave.round import first_state, run_round
from fedweave.sample import Everyone, Uniform
from fedweave.upload import DifferentialDropout, ErrorFeedback, Everything, Quantized, RandomK, TopK
from fedweave.upload.codec import ClientModel
from flower.rehearsal import CLIENTS, app, fate_of, run
from flower.rehearsal import experiment as fleet_experiment
from interrupt import StopAfter
from worlds import equal_clients, quadratic_simulator

N, D = 8, 5
STEPS = np.array([1, 20, 3, 7, 14, 2, 10, 5])


def problem():
    rng = np.random.default_rng(0)
    roots = rng.standard_normal((N, D, D))
    return Quadratics(rng.standard_normal((N, D)), roots @ roots.transpose(0, 2, 1) / D + 0.5 * np.eye(D))


def rounds(method, count, loss=0.3, lr=0.05, quadratics=None, steps=STEPS):
    """Yield state and what happened, round after round; ``lr`` may be a function of the round."""
    q = quadratics or problem()
    n, dim = q.optimum.shape
    population = equal_clients(n, steps=steps, loss_rate=loss)
    engine = quadratic_simulator(q, method.solver, 0, population.weight, method.upload)
    state = first_state(method, np.zeros(dim), population, dim)
    for r in range(count):
        state, happened = run_round(method, state, population, engine, lr(r) if callable(lr) else lr, 0)
        yield state, happened


INNER = {
    "top-k": TopK(0.4), "quantised top-k": TopK(0.6, Quantized(3)), "random": RandomK(0.4),
    "quantised": Quantized(3), "quantised random": RandomK(0.6, Quantized(2, 2, "l2")), "whole": Everything(),
}  # fmt: skip


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_what_was_sent_and_what_is_kept_are_the_updates_that_arrived(inner):
    """Σ decoded + e_T = Σ u over the received answers of each client; the updates follow from the closed form."""
    q, lr, x = problem(), 0.05, np.zeros(D)
    arrived, decoded, lost = np.zeros((N, D)), np.zeros((N, D)), 0
    step = np.eye(D) - lr * q.curvature
    for state, happened in rounds(Method(Uniform(4), upload=ErrorFeedback(inner)), 25):
        ids, received = happened.cohort.ids, happened.replies.received
        before = state.clients["kept"]
        for i in np.flatnonzero(received):
            m = ids[i]
            end = q.optimum[m] + np.linalg.matrix_power(step[m], STEPS[m]) @ (x - q.optimum[m])
            arrived[m] += end - x
            decoded[m] += happened.replies.updates[i]
        lost += int((~received).sum())
        assert np.allclose(decoded + before[np.arange(N)], arrived, atol=1e-12)
        x = state.x
    assert lost > 10
    assert decoded.any()
    kept = state.clients["kept"][np.arange(N)]
    assert kept.any() == (inner != Everything())


def client_model(dim):
    return ClientModel(worlds.layout(dim + 2, dim))


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_in_float32_the_account_is_exact_but_for_the_rounding_of_a_difference(inner):
    rng, of, codec = np.random.default_rng(4), client_model(300), ErrorFeedback(inner)
    kept = None
    for scale in (1.0, 1e-3, 30.0, 1.0):
        update = (scale * rng.standard_normal(302)).astype(np.float32)
        payload, after = codec.encode(update, 0 * update, 0 * update, None, kept, rng, of)
        found = codec.decode(payload, of)[0]
        wanted = update if kept is None else update + kept
        assert after.dtype == np.float32
        if inner in (TopK(0.4), RandomK(0.4), Everything()):
            assert np.array_equal(found + after, wanted), "to the last bit"
            assert not (found * after).any(), "an entry is sent or kept"
        assert (np.abs(found.astype(float) + after - wanted) <= np.spacing(np.maximum(abs(found), abs(after)))).all()
        assert not after[300:].any(), "buffers are sent whole"
        kept = after


def test_nothing_is_kept_of_entries_that_a_client_has_for_the_first_time():
    update, of, rng = np.linspace(-1, 1, 22, dtype=np.float32), client_model(20), np.random.default_rng(0)
    kept = np.where(np.arange(22) < 10, np.float32(5), np.float32(np.nan))
    payload, after = ErrorFeedback(TopK(0.5)).encode(update, update, update, None, kept, rng, of)
    found = ErrorFeedback(TopK(0.5)).decode(payload, of)[0]
    assert np.array_equal(found + after, update + np.where(np.arange(22) < 10, np.float32(5), np.float32(0)))


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_what_is_kept_stays_bounded(inner):
    """With E‖p − C(p)‖² ≤ (1 − δ) ‖p‖² and ‖u‖ ≤ 1 the root mean square of e is below √(1−δ)/(1 − √(1−δ))."""
    rng, of, codec, kept, square = np.random.default_rng(0), client_model(20), ErrorFeedback(inner), None, []
    for _ in range(300):
        update = rng.standard_normal(22).astype(np.float32)
        update /= np.linalg.norm(update)
        kept = codec.encode(update, 0 * update, 0 * update, None, kept, rng, of).kept
        square.append(float(kept @ kept))
    left = np.sqrt(1 - (0.4 if inner in (TopK(0.4), RandomK(0.4)) else 1 / 20))
    assert np.sqrt(np.mean(square)) <= left / (1 - left)


def test_a_top_k_alone_never_sends_what_two_clients_agree_on_and_with_feedback_it_arrives():
    """f_m = ½‖x − x_m‖² with optima (±5, 1): the large first entries cancel. The best point is (0, 1)."""
    q, best = Quadratics(np.array([[5.0, 1.0], [-5.0, 1.0]])), np.array([0.0, 1.0])

    def distance(upload, count, lr):
        *_, (state, _) = rounds(Method(Everyone(), upload=upload), count, 0.0, lr, q, steps=1)
        return np.linalg.norm(state.x - best)

    assert distance(TopK(0.5), 60, 0.1) == 1.0, "it has not moved at all"
    assert distance(Everything(), 300, 0.1) < 1e-12
    assert distance(ErrorFeedback(TopK(0.5)), 200, 0.02) <= 2 * 5 * 0.02, "to within two steps of the large entries"
    assert distance(ErrorFeedback(TopK(0.5)), 800, lambda r: 0.2 / (1 + r / 10)) < 0.05, "and further as steps fall"


@pytest.mark.parametrize("inner", [Quantized(3), RandomK(0.4), TopK(0.4)], ids=str)
def test_feedback_leads_to_the_optimum_that_all_clients_share(inner):
    q = problem()
    same = Quadratics(np.tile(q.optimum[0], (N, 1)), q.curvature)
    for upload in (inner, ErrorFeedback(inner)):
        *_, (state, _) = rounds(Method(Uniform(4), upload=upload), 120, quadratics=same, lr=0.1)
        assert np.linalg.norm(state.x - q.optimum[0]) < 0.02 * np.linalg.norm(q.optimum[0])


# Clients that remember


@pytest.mark.parametrize("upload", [TopK(0.4), RandomK(0.6), ErrorFeedback(Quantized(3))], ids=str)
@pytest.mark.parametrize(
    ("solver", "aggregator"), [(ControlVariate(), Scaffold()), (Dyn(1.0), DynMean())], ids=["scaffold", "feddyn"]
)
def test_scaffold_and_feddyn_reach_the_optimum_through_lossy_codecs(solver, aggregator, upload):
    """Their updates vanish at the optimum, and with them what a codec leaves out: memories and server must agree."""
    for state, _ in rounds(Method(Everyone(), solver, aggregator, upload=upload), 250, lr=0.1):
        memory = state.clients["memory"].combine(np.full(N, 1 / N))
        server = state.aggregator["c"] if solver.uploads_memory else -state.aggregator["moved"]
        assert np.allclose(memory, server, atol=1e-12), "what the server holds is the mean of what clients hold"
    assert np.linalg.norm(state.x - problem().minimiser(np.ones(N))) < 1e-4


def test_scaffold_remembers_the_true_update_and_sends_the_change_whole():
    """c_i = (x − y)/(η T) of where the client really was, by the closed form; its bytes count beside the payload."""
    q, lr = problem(), 0.05
    method = replace(methods.scaffold(3), sampler=Everyone(), upload=TopK(0.4))
    ((state, happened),) = rounds(method, 1, loss=0.0, lr=lr)
    for m in range(N):
        end = q.optimum[m] - np.linalg.matrix_power(np.eye(D) - lr * q.curvature[m], STEPS[m]) @ q.optimum[m]
        assert np.allclose(state.clients["memory"][np.array([m])][0], -end / (lr * STEPS[m]), atol=1e-12)
    payload = TopK(0.4).size(ClientModel(worlds.layout(D), dtype=np.dtype(float)), None)
    assert (happened.replies.bytes_up == payload + 8 * D).all()


def test_on_a_fleet_clients_that_remember_send_whole_updates():
    with pytest.raises(fw.BadInput, match=r"must send whole updates on a real fleet.*TopK does not"):
        run(fleet_experiment(methods.feddyn(2), upload="topk:0.1", rounds=1))


# Whole runs

UPLOADS = {"top-k with feedback": ErrorFeedback(TopK(0.05, Quantized(4))), "random": RandomK(0.2)}


@pytest.mark.parametrize("upload", UPLOADS.values(), ids=UPLOADS)
def test_same_bits_in_workers_over_flower_and_after_an_interruption(upload, tmp_path):
    """Links lose answers, so that what clients keep is now and then that of an earlier round."""
    lossy = fw.system.Dynamic(slow_work=(1, 2), fast_work=(4, 6))
    given = fleet_experiment(fw.methods.fedavg(4), upload=upload, rounds=4, steps=None, system=lossy)
    simulated = fw.run(given)
    assert not simulated.clients["received"].all()
    assert fw.run(replace(given, workers=2)).summary["digest"] == simulated.summary["digest"]
    fleet = flower.LocalGrid(app(), CLIENTS, fate=fate_of(given), bytes=True)
    assert run(given, fleet, flower.Terms(min_answers=0)).summary["digest"] == simulated.summary["digest"]
    named = replace(given, data="digits")
    with pytest.raises(fw.Interrupted):
        fw.run(named, tmp_path / "run", StopAfter(2))
    resumed = fw.resume(tmp_path / "run")
    assert resumed.summary["digest"] == simulated.summary["digest"]
    assert np.array_equal(resumed.clients["bytes_up"], simulated.clients["bytes_up"])


@pytest.mark.parametrize("upload", [TopK(1.0), ErrorFeedback(TopK(1.0))], ids=str)
def test_a_codec_that_leaves_nothing_out_is_no_codec(upload):
    given = worlds.experiment(rounds=4)
    plain, through = fw.run(given), fw.run(replace(given, upload=upload))
    assert through.summary["digest"] == plain.summary["digest"]
    assert through.summary["bytes_up"] == plain.summary["bytes_up"]


def test_bytes_are_those_of_the_payload_and_downloads_stay_whole():
    given = worlds.experiment(fw.methods.fedavg_full(), rounds=3, system="uniform")
    plain, through = fw.run(given), fw.run(replace(given, upload="ef:topk:0.05"))
    dim = plain.x.size
    assert (through.clients["bytes_up"] == TopK(0.05).size(ClientModel(worlds.layout(dim)), None)).all()
    assert through.summary["bytes_down"] == plain.summary["bytes_down"] == 3 * 6 * 4 * dim


def test_sub_models_send_compressed_parts():
    given = worlds.experiment(fw.methods.fedavg_full(), rounds=3, model="mlp", submodels=(1, 0.5), system="uniform")
    plain, through = fw.run(given), fw.run(replace(given, upload="ef:topk:0.05"))
    up = [r.clients["bytes_up"].reshape(3, 6) for r in (plain, through)]
    assert (up[1] < up[0] / 10).all()
    assert (up[1][:, 1] < up[1][:, 0] / 1.8).all(), "narrow models have fewer entries to send"
    assert np.isfinite(through.rounds["loss"]).all()


def test_a_client_that_fails_to_be_finite_is_refused_by_name_and_keeps_what_it_had():
    given = worlds.experiment(fw.methods.fedavg_full(), rounds=2, system="uniform", lr=1e38, upload="ef:topk:0.05")
    for state, happened in fw.rounds(given):
        assert not happened.replies.received.any()
        assert [failure.client for failure in happened.refused] == list(range(6))
        assert "not finite" in str(happened.refused[0])
        assert not state.clients["kept"].written.any()


# Refusals


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ErrorFeedback(DifferentialDropout()), "DifferentialDropout already keeps it"),
        (lambda: ErrorFeedback(ErrorFeedback()), "ErrorFeedback keeps values of its own"),
        (lambda: worlds.experiment(fw.methods.feddd(), upload="topk:0.1"), "feddd has an upload of its own, Differ"),
        (lambda: worlds.experiment(fw.methods.fedpaq(3), upload=TopK()), "fedpaq has an upload of its own, Quantized"),
        (lambda: worlds.experiment(fw.methods.fedvarp(3), upload=DifferentialDropout()), "Varp would take for zeros"),
        (lambda: worlds.experiment(upload="topk"), r"too few or too many values\. Write topk:SHARE\[:BITS\]"),
        (lambda: worlds.experiment(upload="quantized:4:5"), r"too few or too many values\. Write quantized:BITS"),
        (lambda: worlds.experiment(upload="topk:2"), r"(?s)less than or equal to 1.*written topk:SHARE\[:BITS\]"),
        (lambda: worlds.experiment(upload="ef:tpk:0.1"), "There is no upload 'tpk'. Did you mean 'topk'"),
        (lambda: worlds.experiment(upload=7), "must be a Upload, or text such as 'topk:0.01'"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(make, words):
    with pytest.raises(fw.BadInput, match=words):
        make()


def test_written_forms_are_the_parts():
    forms = {
        "topk:0.01": TopK(0.01), "topk:0.01:4": TopK(0.01, Quantized(4)), "randomk:0.1": RandomK(0.1),
        "randomk:0.1:2": RandomK(0.1, Quantized(2)), "quantized:4": Quantized(4), "ef:topk:0.01": ErrorFeedback(),
        "ef:quantized:2": ErrorFeedback(Quantized(2)),
    }  # fmt: skip
    for text, part in forms.items():
        given = worlds.experiment(upload=text)
        assert given.upload == part
        assert given.paced_method == replace(given.method, upload=part)
        assert fw.runs.plain.from_plain(fw.runs.plain.to_plain(given)) == given
