"""What clients send of their updates."""

from fedweave.upload.dropout import DifferentialDropout as DifferentialDropout
from fedweave.upload.everything import Everything as Everything
