"""Aggregators: combine the received updates into one direction."""

from fedweave.aggregate.aware import MGDA as MGDA
from fedweave.aggregate.aware import Aware as Aware
from fedweave.aggregate.controls import DynMean as DynMean
from fedweave.aggregate.controls import PushPull as PushPull
from fedweave.aggregate.controls import Scaffold as Scaffold
from fedweave.aggregate.extrapolated import Extrapolated as Extrapolated
from fedweave.aggregate.linear import Anonymous as Anonymous
from fedweave.aggregate.linear import Consistent as Consistent
from fedweave.aggregate.linear import InverseProbability as InverseProbability
from fedweave.aggregate.linear import LinkAware as LinkAware
from fedweave.aggregate.linear import Mean as Mean
from fedweave.aggregate.linear import Models as Models
from fedweave.aggregate.linear import Nova as Nova
from fedweave.aggregate.memory import MIFA as MIFA
from fedweave.aggregate.memory import Varp as Varp
from fedweave.aggregate.memory import VarpRefreshed as VarpRefreshed
from fedweave.aggregate.memory import VarpReuse as VarpReuse
from fedweave.aggregate.participation import AU as AU
from fedweave.aggregate.participation import AWE as AWE
from fedweave.aggregate.private import Private as Private
from fedweave.aggregate.robust import Robust as Robust
from fedweave.aggregate.stale import Cached as Cached
from fedweave.aggregate.stale import Mixing as Mixing
from fedweave.aggregate.stale import Stale as Stale
