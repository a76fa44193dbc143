"""Systems: the clients' compute, links and availability, simulated or measured."""

from fedweave.system.devices import Devices as Devices
from fedweave.system.devices import Spread as Spread
from fedweave.system.layers import DayNight as DayNight
from fedweave.system.layers import Jittered as Jittered
from fedweave.system.layers import OnOff as OnOff
from fedweave.system.measured import Measured as Measured
from fedweave.system.traces import Trace as Trace
from fedweave.system.wireless import Shannon as Shannon
from fedweave.system.wireless import Wireless as Wireless
from fedweave.system.worlds import Dynamic as Dynamic
from fedweave.system.worlds import HybridPlus as HybridPlus
from fedweave.system.worlds import Latency as Latency
from fedweave.system.worlds import Static as Static
from fedweave.system.worlds import Uniform as Uniform
