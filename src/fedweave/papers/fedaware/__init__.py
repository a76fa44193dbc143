"""FedAWARE: its table and figures, and what keeps raw momenta from stalling."""

from fedweave.papers.fedaware.studies import STUDIES as STUDIES
