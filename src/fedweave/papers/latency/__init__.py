"""Latency-optimal client selection: figures 2 to 6, table 1, and items beyond the paper."""

from fedweave.papers.latency.estimated_alpha import alpha as alpha
from fedweave.papers.latency.estimators import weights as weights
from fedweave.papers.latency.planning import fig2 as fig2
from fedweave.papers.latency.planning import fig3 as fig3
from fedweave.papers.latency.table import fig4 as fig4
from fedweave.papers.latency.table import fig5 as fig5
from fedweave.papers.latency.table import fig6 as fig6
from fedweave.papers.latency.table import table1 as table1
