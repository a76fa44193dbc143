"""How the answers become one direction."""

from fedweave.aggregate.linear import Anonymous as Anonymous
from fedweave.aggregate.linear import InverseProbability as InverseProbability
from fedweave.aggregate.linear import Mean as Mean
