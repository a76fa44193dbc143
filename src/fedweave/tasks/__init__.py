"""What is learned: the loss of a batch, and what is measured of a model."""

from fedweave.tasks.classification import Classification as Classification
from fedweave.tasks.names import default_for as default_for
from fedweave.tasks.names import info as info
from fedweave.tasks.names import parse as parse
from fedweave.tasks.next_token import NextToken as NextToken
from fedweave.tasks.regression import Regression as Regression
from fedweave.tasks.task import Batch as Batch
from fedweave.tasks.task import Task as Task

__all__ = ["Batch", "Classification", "NextToken", "Regression", "Task"]
