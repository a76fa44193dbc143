"""FedACS: its figures and tables, and two questions beyond it."""

from fedweave.papers.fedacs.beyond import effort as effort
from fedweave.papers.fedacs.beyond import links as links
from fedweave.papers.fedacs.images import fig6 as fig6
from fedweave.papers.fedacs.images import fig9 as fig9
from fedweave.papers.fedacs.images import fig10 as fig10
from fedweave.papers.fedacs.images import table1 as table1
from fedweave.papers.fedacs.images import table4 as table4
from fedweave.papers.fedacs.images import table5 as table5
from fedweave.papers.fedacs.quadratics import fig4 as fig4
from fedweave.papers.fedacs.quadratics import fig7 as fig7
