"""What is learned: the loss of a batch, and what is measured of a model."""

from fedweave.tasks.classification import Classification as Classification
from fedweave.tasks.regression import Regression as Regression
from fedweave.tasks.task import Task as Task

__all__ = ["Classification", "Regression", "Task"]
