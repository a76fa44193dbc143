"""What the papers prove, as functions of NumPy arrays, one module per paper; client order as given."""

from __future__ import annotations

from fedweave.theory.delta import delta_alphas as delta_alphas
from fedweave.theory.delta import delta_bound as delta_bound
from fedweave.theory.delta import delta_probability as delta_probability
from fedweave.theory.delta import delta_score as delta_score
from fedweave.theory.delta import importance_probability as importance_probability
from fedweave.theory.delta import update_variance as update_variance
from fedweave.theory.fedacs import acs_probability as acs_probability
from fedweave.theory.fedacs import chi_square as chi_square
from fedweave.theory.fedacs import effective_rate as effective_rate
from fedweave.theory.fedacs import effective_step as effective_step
from fedweave.theory.fedacs import effective_steps as effective_steps
from fedweave.theory.fedacs import fixed_point as fixed_point
from fedweave.theory.fedacs import gradient_bound as gradient_bound
from fedweave.theory.fedacs import is_consistent as is_consistent
from fedweave.theory.fedacs import link_weight as link_weight
from fedweave.theory.fedacs import local_reach as local_reach
from fedweave.theory.fedacs import surrogate_weight as surrogate_weight
from fedweave.theory.fedaware import diversity_ratio as diversity_ratio
from fedweave.theory.fedaware import gradient_diversity as gradient_diversity
from fedweave.theory.fedaware import surrogate_diversity as surrogate_diversity
from fedweave.theory.latency import expected_round_seconds as expected_round_seconds
from fedweave.theory.latency import rounds_needed as rounds_needed
from fedweave.theory.latency import some_draw as some_draw
