"""Latency-optimal client selection: its table and figures, and studies beyond the paper."""

from fedweave.papers.latency.studies import STUDIES as STUDIES
