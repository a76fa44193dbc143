"""Latency-optimal client selection: its table and figures, and studies beyond the paper."""

from fedweave.papers.latency.beyond import BEYOND
from fedweave.papers.latency.studies import OF_THE_PAPER

STUDIES = (*OF_THE_PAPER, *BEYOND)
