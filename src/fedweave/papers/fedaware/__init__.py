"""FedAWARE: its table and figures, and what keeps raw momenta from stalling."""

from fedweave.papers.fedaware.bounds import STUDIES as EXACT
from fedweave.papers.fedaware.studies import STUDIES as TRAINED

STUDIES = (*TRAINED, *EXACT)
