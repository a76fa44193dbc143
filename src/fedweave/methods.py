"""The methods by name, one short function each. Each returns a Method, whose parts can all be exchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fedweave import server
from fedweave.aggregate import (
    AU,
    AWE,
    MGDA,
    MIFA,
    Anonymous,
    Aware,
    Cached,
    Consistent,
    DynMean,
    Extrapolated,
    InverseProbability,
    LinkAware,
    Mean,
    Mixing,
    Nova,
    Private,
    PushPull,
    Robust,
    Scaffold,
    Stale,
    Varp,
    VarpReuse,
)
from fedweave.core.names import METHODS
from fedweave.core.options import warn_renamed
from fedweave.local.solvers import ControlVariate, Dyn, Prox, Tracking
from fedweave.method import Method
from fedweave.pacing import Buffered
from fedweave.sample import (
    ACS,
    IS,
    Clustered,
    ClusterIS,
    Deadline,
    Delta,
    Everyone,
    FirstEveryone,
    LatencyOptimal,
    Oort,
    Optimal,
    Planned,
    PowerOfChoice,
    PracticalDelta,
    PracticalIS,
    Tiers,
    Uniform,
    UniformDraws,
    Weighted,
)
from fedweave.upload import DifferentialDropout, JointDropout, Quantized

RENAMED = {"fedmd": "fedavg_md"}  # names of 0.1, which still work and warn
GROUPS = METHODS  # what methods cure, and which do


def fedavg(per_round: int = 10) -> Method:
    """Uniform cohort, data-weighted mean of the received updates (McMahan et al.)."""
    return Method(Uniform(per_round), name="fedavg")


def fedprox(per_round: int = 10, mu: float = 0.01) -> Method:
    """FedAvg with a proximal term that pulls clients towards the global model (Li et al.)."""
    return replace(fedavg(per_round), solver=Prox(mu), name="fedprox")


def fedavgm(per_round: int = 10, lr: float = 1.0, beta: float = 0.7) -> Method:
    """FedAvg with server momentum (Hsu et al.)."""
    return replace(fedavg(per_round), server=server.Momentum(lr, beta), name="fedavgm")


def fedadagrad(per_round: int = 10, lr: float = 0.01) -> Method:
    """FedAvg with Adagrad on the server (Reddi et al.)."""
    return replace(fedavg(per_round), server=server.Adagrad(lr), name="fedadagrad")


def fedadam(per_round: int = 10, lr: float = 0.01) -> Method:
    """FedAvg with Adam on the server (Reddi et al.)."""
    return replace(fedavg(per_round), server=server.Adam(lr), name="fedadam")


def fedyogi(per_round: int = 10, lr: float = 0.01) -> Method:
    """FedAvg with Yogi on the server (Reddi et al.)."""
    return replace(fedavg(per_round), server=server.Yogi(lr), name="fedyogi")


def fedexp(per_round: int = 10, epsilon: float = 1e-3) -> Method:
    """FedExP: FedAvg with a longer server step where the updates point apart (Jhunjhunwala et al.)."""
    return replace(fedavg(per_round), aggregator=Extrapolated(Mean(), epsilon), name="fedexp")


def fedpaq(per_round: int = 10, bits: int = 4) -> Method:
    """FedPAQ: FedAvg with updates quantised to a few bits each, unbiased (Reisizadeh et al.)."""
    return replace(fedavg(per_round), upload=Quantized(bits), name="fedpaq")


def fedavg_is(per_round: int = 10) -> Method:
    """FedAvg by importance sampling, p = ω with replacement, anonymous sum (FedACS eq. 18)."""
    return Method(Weighted(per_round), aggregator=Anonymous(), name="fedavg_is")


def fedavg_md(per_round: int = 10) -> Method:
    """Multinomial sampling by data size with a plain average: DELTA's name for the same law as ``fedavg_is``."""
    return replace(fedavg_is(per_round), name="fedavg_md")


def fedmd(per_round: int = 10) -> Method:
    """Return ``fedavg_md`` under its name of 0.1; FedMD of the literature is another method."""
    warn_renamed("fedmd", RENAMED["fedmd"])
    return fedavg_md(per_round)


def fedavg_us(per_round: int = 10) -> Method:
    """FedAvg by uniform sampling, each update weighted by its data share (FedACS eq. 19)."""
    return Method(Uniform(per_round), aggregator=InverseProbability(), name="fedavg_us")


def fedavg_full(per_round: int = 10) -> Method:
    """FedAvg with all clients every round (FedACS eq. 21); ``per_round`` has no effect."""
    return Method(Everyone(), aggregator=InverseProbability(), name="fedavg_full")


def fedavg_ca(per_round: int = 10) -> Method:
    """Communication-aware FedAvg: importance sampling, updates divided by their arrival rates (FedACS eq. 113)."""
    return Method(Weighted(per_round), aggregator=LinkAware(), name="fedavg_ca")


def fedacs(per_round: int = 10) -> Method:
    """FedACS: sampling that corrects for lossy links and uneven work together, anonymous sum."""
    return Method(ACS(per_round), aggregator=Anonymous(), name="fedacs")


def fedacs_estimated(per_round: int = 10) -> Method:
    """FedACS with loss rates and steps estimated from past rounds."""
    return Method(ACS(per_round, links="estimated"), aggregator=Anonymous(), name="fedacs_estimated")


def fedacs_measured(per_round: int = 10) -> Method:
    """FedACS with efforts measured by how far clients move instead of counted steps."""
    return Method(ACS(per_round, effort="measured"), aggregator=Anonymous(), name="fedacs_measured")


def fedacs_private(per_round: int = 10, clip: float = 1.0, noise: float = 1.0) -> Method:
    """FedACS under central differential privacy: clipped updates, Gaussian noise on their anonymous sum."""
    return Method(ACS(per_round), aggregator=Private(clip, noise), name="fedacs_private")


def fedavg_median(per_round: int = 10) -> Method:
    """FedAvg with the coordinate median: up to half of the cohort may send arbitrary values (Yin et al.)."""
    return replace(fedavg(per_round), aggregator=Robust(Mean(), trim=0.5), name="fedavg_median")


def fedavg_trimmed(per_round: int = 10, trim: float = 0.2) -> Method:
    """FedAvg with the trimmed mean, updates clipped to the median length (Yin et al.)."""
    return replace(fedavg(per_round), aggregator=Robust(Mean(), "median", trim), name="fedavg_trimmed")


def fednova(per_round: int = 10) -> Method:
    """FedNova: updates divided by their effort, so that uneven work adds no weight (Wang et al.)."""
    return Method(Uniform(per_round), aggregator=Nova(), name="fednova")


def fednova_renorm(per_round: int = 10) -> Method:
    """FedNova as in FedAWARE's code: a mean with weights ω/‖a‖₁, whose step is not scaled back."""
    return Method(Uniform(per_round), aggregator=Nova("quotients"), name="fednova_renorm")


def scaffold(per_round: int = 10, lr: float = 1.0) -> Method:
    """SCAFFOLD: control variates correct the clients' gradients for their drift (Karimireddy et al.)."""
    return Method(Uniform(per_round), ControlVariate(), Scaffold(), server.Descent(lr), name="scaffold")


def feddyn(per_round: int = 10, alpha: float = 0.01) -> Method:
    """FedDyn: dynamic regularisers align the clients' optima with the global one (Acar et al.)."""
    return Method(Uniform(per_round), Dyn(alpha), DynMean(), name="feddyn")


def fedvarp(per_round: int = 10) -> Method:
    """FedVARP: the mean of all clients' last updates, corrected by the new ones (Jhunjhunwala et al.)."""
    return Method(Uniform(per_round), aggregator=Varp(), name="fedvarp")


def fedvarp_reuse(per_round: int = 10) -> Method:
    """FedVARP as FedACS uses it: a lost answer is replaced by the client's last one (eq. 114)."""
    return Method(Weighted(per_round), aggregator=VarpReuse(), name="fedvarp_reuse")


def fedau(per_round: int = 10, cutoff: int = 50) -> Method:
    """FedAU: weights learned from the clients' intervals between answers (Wang and Ji)."""
    return Method(Weighted(per_round), aggregator=AU(cutoff), name="fedau")


def mifa(per_round: int = 10) -> Method:
    """MIFA: the mean of all clients' latest updates, after a first round with all clients (Gu et al.)."""
    return Method(FirstEveryone(Uniform(per_round)), aggregator=MIFA(), name="mifa")


def fedawe(per_round: int = 10, lr: float = 1.0) -> Method:
    """FedAWE: updates count once for each round of absence; clients go on from their own models (Xiang et al.)."""
    return Method(Uniform(per_round), aggregator=AWE(lr), name="fedawe")


def focus(per_round: int = 10, lr: float = 1.0) -> Method:
    """FOCUS: tracked gradients make it exact whoever takes part and however often (Ying et al.)."""
    return Method(Uniform(per_round), Tracking(), PushPull(), server.Descent(lr), name="focus")


def fedos(per_round: int = 10) -> Method:
    """Optimal sampling by the norm of each client's last update (FedACS eq. 20)."""
    return Method(Optimal(per_round), aggregator=InverseProbability(), name="fedos")


def fedaware(
    per_round: int = 10, alpha: float | tuple[float, ...] = 0.5, start: Literal["everyone", "mean"] = "everyone"
) -> Method:
    """FedAWARE: the shortest convex combination of all clients' momenta, after a first round with all clients.

    With ``start`` "mean" the first rounds ask all clients in groups, and FedAvg's direction counts until they are done,
    as in most of the authors' scripts.
    """
    first = FirstEveryone(Uniform(per_round), 1 if start == "everyone" else None)
    return Method(first, aggregator=Aware(alpha, start="seen" if start == "everyone" else "mean"), name="fedaware")


def fedaware_unit(
    per_round: int = 10, alpha: float | tuple[float, ...] = 0.5, start: Literal["everyone", "mean"] = "everyone"
) -> Method:
    """FedAWARE as in its authors' code: momenta are scaled to unit length."""
    aggregator = Aware(alpha, unit=True, start="seen" if start == "everyone" else "mean")
    return replace(fedaware(per_round, alpha, start), aggregator=aggregator, name="fedaware_unit")


def fedmgda(per_round: int = 10, deviation: float = 1.0) -> Method:
    """FedMGDA+: the shortest combination of the round's unit updates, weights bounded (Hu et al.)."""
    return Method(Uniform(per_round), aggregator=MGDA(deviation), name="fedmgda")


def latency_optimal(per_round: int = 10) -> Method:
    """Latency-optimal selection: five trial rounds, then the plan of least expected time (Chen et al.)."""
    return Method(LatencyOptimal(per_round), aggregator=InverseProbability(), name="latency_optimal")


def latency_uniform(per_round: int = 10) -> Method:
    """Uniform draws with replacement and inverse-probability weights: a baseline of the latency paper."""
    return Method(UniformDraws(per_round), aggregator=InverseProbability(), name="latency_uniform")


def latency_norm(per_round: int = 10) -> Method:
    """Norm selection, p ∝ ω G, learned every round from who took part: optimal for equal latencies (Corollary 3)."""
    sampler = LatencyOptimal(per_round, trial=1, replan=1, latency="equal")
    return Method(sampler, aggregator=InverseProbability(), name="latency_norm")


def latency_ratio(per_round: int = 10) -> Method:
    """Ratio selection, p = ω, whose inverse-probability weights are all equal: a baseline of the latency paper."""
    return Method(Weighted(per_round), aggregator=InverseProbability(), name="latency_ratio")


def feddelta(per_round: int = 10) -> Method:
    """DELTA with an oracle: prefers clients whose gradients are noisy and far from the global one (Wang et al.)."""
    return Method(Delta(per_round), aggregator=InverseProbability(), name="feddelta")


def fedpracdelta(per_round: int = 10) -> Method:
    """Practical DELTA: probabilities learned from the clients that took part (DELTA eq. 16)."""
    return Method(PracticalDelta(per_round), aggregator=InverseProbability(), name="fedpracdelta")


def fedis(per_round: int = 10) -> Method:
    """Importance sampling with an oracle: p by the norm of every client's update (DELTA eq. 5)."""
    return Method(IS(per_round), aggregator=InverseProbability(), name="fedis")


def fedpracis(per_round: int = 10) -> Method:
    """Practical importance sampling: probabilities learned from the clients that took part (DELTA eq. 15)."""
    return Method(PracticalIS(per_round), aggregator=InverseProbability(), name="fedpracis")


def cluster_is(per_round: int = 10) -> Method:
    """Cluster-based importance sampling: clients grouped by the norm of their updates, some of each group."""
    return Method(ClusterIS(per_round), aggregator=InverseProbability(), name="cluster_is")


def clustered(per_round: int = 10) -> Method:
    """Clustered sampling by data size: one client from each of K distributions, plain average (Fraboni et al.)."""
    return Method(Clustered(per_round), aggregator=Anonymous(), name="clustered")


def clustered_similarity(per_round: int = 10) -> Method:
    """Clustered sampling by similarity: clients with like updates share a distribution (Fraboni et al.)."""
    return Method(Clustered(per_round, "similarity"), aggregator=Anonymous(), name="clustered_similarity")


def power_of_choice(per_round: int = 10) -> Method:
    """Power-of-Choice: the clients with the largest loss among twice as many candidates, plain average (Cho et al.)."""
    return Method(PowerOfChoice(per_round), aggregator=Anonymous(), name="power_of_choice")


def fedpracdelta_consistent(per_round: int = 10) -> Method:
    """Practical DELTA with weights that make it consistent under lossy links and uneven work (beyond the papers)."""
    return Method(PracticalDelta(per_round), aggregator=Consistent(), name="fedpracdelta_consistent")


def feddd(per_round: int = 10, keep: float = 0.6) -> Method:
    """FedDD: all clients take part, each with a dropout rate for its link and data; ``per_round`` has no effect."""
    return Method(Everyone(), upload=DifferentialDropout(keep), name="feddd")


def feddd_random(per_round: int = 10, keep: float = 0.6) -> Method:
    """FedDD with channels chosen at random."""
    return Method(Everyone(), upload=DifferentialDropout(keep, choose="random"), name="feddd_random")


def feddd_max(per_round: int = 10, keep: float = 0.6) -> Method:
    """FedDD with the channels of the largest weights."""
    return Method(Everyone(), upload=DifferentialDropout(keep, choose="max"), name="feddd_max")


def feddd_delta(per_round: int = 10, keep: float = 0.6) -> Method:
    """FedDD with the channels that changed most."""
    return Method(Everyone(), upload=DifferentialDropout(keep, choose="delta"), name="feddd_delta")


def feddd_ordered(per_round: int = 10, keep: float = 0.6) -> Method:
    """FedDD with the first channels of every layer."""
    return Method(Everyone(), upload=DifferentialDropout(keep, choose="ordered"), name="feddd_ordered")


def feddd_acs(per_round: int = 10, keep: float = 0.6) -> Method:
    """FedDD's dropout on FedACS's cohort: clients with lossy links or little work are asked more often."""
    return Method(ACS(per_round), aggregator=Anonymous(), upload=DifferentialDropout(keep), name="feddd_acs")


def latency_dropout(per_round: int = 10, keep: float = 0.6) -> Method:
    """FedDD's dropout on the latency-optimal cohort."""
    dropout = DifferentialDropout(keep)
    return Method(LatencyOptimal(per_round), aggregator=InverseProbability(), upload=dropout, name="latency_dropout")


def feddd_joint(per_round: int = 10, keep: float = 0.6) -> Method:
    """Selection and dropout in one plan: at most ``per_round`` clients, with the largest contribution per second."""
    plan = JointDropout(keep, per_round=per_round)
    return Method(Planned(plan), upload=plan, name="feddd_joint")


def fedcs(per_round: int = 10) -> Method:
    """FedCS: the clients with the fastest links (Nishio and Yonetani)."""
    return Method(Deadline(per_round), name="fedcs")


def tifl(per_round: int = 10) -> Method:
    """TiFL: one tier of equally fast clients a round, tiers with a high loss more often (Chai et al.)."""
    return Method(Tiers(per_round), name="tifl")


def oort(per_round: int = 10) -> Method:
    """Oort: clients with a high loss and much data, unless they are slow; some new ones every round (Lai et al.)."""
    return Method(Oort(per_round), name="oort")


def fedbuff(per_round: int = 10, buffer: int | None = None, exponent: float = 0.5) -> Method:
    """FedBuff: asynchronous rounds of ``buffer`` answers, those of older models scaled by 1/(1 + τ)^a (Nguyen et al.).

    ``per_round`` clients train at the same time, as many as a synchronous round of that size asks. The buffer is half
    of them unless it is given.
    """
    pacing = Buffered(per_round, buffer or -(-per_round // 2))
    return Method(Uniform(per_round), aggregator=Stale(Mean(), exponent), pacing=pacing, name="fedbuff")


def fedasync(per_round: int = 10, alpha: float = 0.6, exponent: float = 0.5, mu: float = 0.005) -> Method:
    """FedAsync: each answer is mixed into the model as it lands, less the older it is (Xie et al.).

    ``per_round`` clients train at the same time, with a proximal term (ρ of the paper).
    """
    pacing, mixing = Buffered(per_round, 1), Mixing(alpha, exponent)
    return Method(Uniform(per_round), Prox(mu), mixing, pacing=pacing, name="fedasync")


def ca2fl(per_round: int = 10, buffer: int | None = None) -> Method:
    """CA²FL: asynchronous rounds as FedBuff's, calibrated by the cached last updates of all clients (Wang et al.)."""
    pacing = Buffered(per_round, buffer or -(-per_round // 2))
    return Method(Uniform(per_round), aggregator=Cached(), pacing=pacing, name="ca2fl")
