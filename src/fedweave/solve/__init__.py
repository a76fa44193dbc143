"""Optimisation problems of the papers as pure functions: NumPy in, NumPy out, client order as given."""

from fedweave.solve.latency_plan import LatencyPlan as LatencyPlan
from fedweave.solve.latency_plan import latency_plan as latency_plan
