"""FedAWARE: its table and figures, and what keeps raw momenta from stalling."""

from fedweave.papers.fedaware.items import fig2 as fig2
from fedweave.papers.fedaware.items import fig4 as fig4
from fedweave.papers.fedaware.items import fig5 as fig5
from fedweave.papers.fedaware.items import fig6 as fig6
from fedweave.papers.fedaware.items import fig7 as fig7
from fedweave.papers.fedaware.items import fig8 as fig8
from fedweave.papers.fedaware.items import fig9 as fig9
from fedweave.papers.fedaware.items import table1 as table1
from fedweave.papers.fedaware.items import variants as variants
