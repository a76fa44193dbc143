"""Data sets and partitions."""

from fedweave.data import partition as partition
from fedweave.data import synthetic as synthetic
from fedweave.data.arrays import from_arrays as from_arrays
from fedweave.data.augment import RandomCrop as RandomCrop
from fedweave.data.augment import RandomFlip as RandomFlip
from fedweave.data.dataset import Dataset as Dataset
from fedweave.data.datasets import cinic10 as cinic10
from fedweave.data.datasets import info as info
from fedweave.data.datasets import load as load
from fedweave.data.datasets import names as names
from fedweave.data.fetch import data_root as data_root
from fedweave.data.folders import image_folder as image_folder
from fedweave.data.partition import Partition as Partition
from fedweave.data.partition import Shares as Shares
from fedweave.data.partition import imbalance as imbalance
from fedweave.data.sources import from_frame as from_frame
from fedweave.data.sources import from_huggingface as from_huggingface
from fedweave.data.sources import from_torch as from_torch
