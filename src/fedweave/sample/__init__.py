"""Samplers: which clients take part in a round."""

from fedweave.sample.acs import ACS as ACS
from fedweave.sample.cluster import ClusterIS as ClusterIS
from fedweave.sample.clustered import Clustered as Clustered
from fedweave.sample.delta import IS as IS
from fedweave.sample.delta import Delta as Delta
from fedweave.sample.fedcs import Deadline as Deadline
from fedweave.sample.fixed import Everyone as Everyone
from fedweave.sample.fixed import Fixed as Fixed
from fedweave.sample.fixed import Uniform as Uniform
from fedweave.sample.fixed import Weighted as Weighted
from fedweave.sample.importance import Optimal as Optimal
from fedweave.sample.latency import LatencyOptimal as LatencyOptimal
from fedweave.sample.latency import UniformDraws as UniformDraws
from fedweave.sample.learned import PracticalDelta as PracticalDelta
from fedweave.sample.learned import PracticalIS as PracticalIS
from fedweave.sample.oort import Oort as Oort
from fedweave.sample.planned import Planned as Planned
from fedweave.sample.power_of_choice import PowerOfChoice as PowerOfChoice
from fedweave.sample.tifl import Tiers as Tiers
from fedweave.sample.warm_start import FirstEveryone as FirstEveryone
