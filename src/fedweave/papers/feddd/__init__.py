"""FedDD: its figures, and dropout on the cohorts of other samplers."""

from fedweave.papers.feddd.items import fig4 as fig4
from fedweave.papers.feddd.items import fig5 as fig5
from fedweave.papers.feddd.items import fig6 as fig6
from fedweave.papers.feddd.items import fig7 as fig7
from fedweave.papers.feddd.items import fig9 as fig9
from fedweave.papers.feddd.items import fig10 as fig10
from fedweave.papers.feddd.items import fig21 as fig21
from fedweave.papers.feddd.single import fig2 as fig2
from fedweave.papers.feddd.single import fig3 as fig3
from fedweave.papers.feddd.variants import fig11 as fig11
from fedweave.papers.feddd.variants import fig12 as fig12
from fedweave.papers.feddd.variants import fig13 as fig13
from fedweave.papers.feddd.variants import fig14 as fig14
from fedweave.papers.feddd.variants import fig15 as fig15
from fedweave.papers.feddd.variants import fig16 as fig16
from fedweave.papers.feddd.variants import fig17 as fig17
from fedweave.papers.feddd.variants import fig18 as fig18
from fedweave.papers.feddd.variants import fig19 as fig19
from fedweave.papers.feddd.variants import fig20 as fig20
