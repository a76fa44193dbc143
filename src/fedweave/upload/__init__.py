"""What clients send of their updates."""

from fedweave.upload.dropout import DifferentialDropout as DifferentialDropout
from fedweave.upload.everything import Everything as Everything
from fedweave.upload.feedback import ErrorFeedback as ErrorFeedback
from fedweave.upload.joint import JointDropout as JointDropout
from fedweave.upload.quantized import Quantized as Quantized
from fedweave.upload.sparse import RandomK as RandomK
from fedweave.upload.sparse import TopK as TopK
