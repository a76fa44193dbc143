"""FedDD: its figures, its theorem, and dropout on the cohorts of other samplers."""

from fedweave.papers.feddd.studies import STUDIES as STUDIES
