"""The papers' optimisation problems as pure functions: NumPy in, NumPy out, client order as given."""

from fedweave.solve.dropout_plan import dropout_plan as dropout_plan
from fedweave.solve.joint_plan import JointPlan as JointPlan
from fedweave.solve.joint_plan import joint_plan as joint_plan
from fedweave.solve.latency_plan import LatencyPlan as LatencyPlan
from fedweave.solve.latency_plan import latency_plan as latency_plan
from fedweave.solve.min_norm import min_norm_point as min_norm_point
from fedweave.solve.min_norm import min_norm_weights as min_norm_weights
