"""Who takes part."""

from fedweave.sample.acs import ACS as ACS
from fedweave.sample.choice import PowerOfChoice as PowerOfChoice
from fedweave.sample.cluster import ClusterIS as ClusterIS
from fedweave.sample.deadline import Deadline as Deadline
from fedweave.sample.delta import IS as IS
from fedweave.sample.delta import Delta as Delta
from fedweave.sample.first import FirstEveryone as FirstEveryone
from fedweave.sample.importance import Optimal as Optimal
from fedweave.sample.latency import LatencyOptimal as LatencyOptimal
from fedweave.sample.latency import UniformDraws as UniformDraws
from fedweave.sample.laws import Everyone as Everyone
from fedweave.sample.laws import Fixed as Fixed
from fedweave.sample.laws import Uniform as Uniform
from fedweave.sample.laws import Weighted as Weighted
from fedweave.sample.practical import PracticalDelta as PracticalDelta
from fedweave.sample.practical import PracticalIS as PracticalIS
from fedweave.sample.utility import Oort as Oort
