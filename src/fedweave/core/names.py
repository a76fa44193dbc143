"""The names that options take, by kind, for the command line that must not load what they stand for.

What a name means is said where it is defined; a test compares both. ``fedweave list`` and shell completion read these.
"""

from __future__ import annotations

METHODS = {  # what methods cure, and which do; every method is in one group, and `fedweave list methods` in this order
    "plain": (
        "baselines and server optimisers",
        "fedavg fedavg_full fedavg_us fedavg_is fedavg_md fedavgm fedadagrad fedadam fedyogi fedexp",
    ),
    "links": (
        "answers that get lost, most of them with uneven work too",
        """fedacs fedacs_estimated fedacs_measured fedavg_ca fedau fedvarp_reuse fedpracdelta_consistent mifa fedawe
        focus""",
    ),
    "work": ("clients that do different numbers of local steps", "fednova fednova_renorm"),
    "data": (
        "data that differs between clients",
        """fedprox scaffold feddyn fedvarp fedaware fedaware_unit fedmgda fedos fedis feddelta fedpracis fedpracdelta
        cluster_is clustered clustered_similarity power_of_choice""",
    ),
    "time": (
        "rounds that wait for slow clients",
        "latency_optimal latency_norm latency_ratio latency_uniform fedcs oort tifl fedbuff fedasync ca2fl",
    ),
    "bytes": (
        "messages that are too large",
        "feddd feddd_joint feddd_acs feddd_random feddd_max feddd_delta feddd_ordered latency_dropout fedpaq",
    ),
    "trust": ("clients that attack, and privacy", "fedavg_median fedavg_trimmed fedacs_private"),
}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# What most people use, which `fedweave list` shows.
COMMON_METHODS = _words(
    """fedavg fedprox scaffold fednova fedavgm fedyogi fedadam feddyn fedacs fedaware feddelta latency_optimal feddd
    oort power_of_choice fedbuff fedasync fedpaq fedavg_median"""
)
COMMON_MODELS = _words("logistic mlp cnn_small lenet5 cnn_leaf resnet18 lstm transformer linear_regression")
# All of the other kinds.
DATA = _words(
    """digits mnist5k mnist fashion_mnist cifar10 cinic10 emnist_letters femnist celeba shakespeare synthetic
    quadratics"""
)
PARTITIONS = _words("auto iid dirichlet:ALPHA shards:K classes:K one-class split:OWNERS:SHARE natural")
SYSTEMS = _words(
    """uniform static dynamic latency lognormal wireless devices shannon hybrid hybrid+ ,jitter:COMPUTE:LINK
    ,day-night:PERIOD:SHARE:ZONES ,on-off:UP:DOWN TRACE.csv"""
)
TASKS = _words("classification regression next_token")


def methods() -> list[str]:
    """Return the names of all methods, group by group."""
    return [name for _, names in METHODS.values() for name in names.split()]
