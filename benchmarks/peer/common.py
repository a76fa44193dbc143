"""What the programs of the peers share: the work, and rounds on request. It needs no fedweave."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

WORK: dict[str, Any] = json.loads(os.environ["WORK"])


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return samples (clients, samples, ...) and labels."""
    x, y = (np.load(f"{WORK['folder']}/{name}.npy") for name in "xy")
    return x, y


def say(**what: Any) -> None:
    """Send a line to whoever asks for rounds."""
    print("PEER " + json.dumps(what), flush=True)


def wait() -> bool:
    """Return whether another round is wanted; it begins now."""
    return bool(sys.stdin.readline())


class Clock:
    """Tells the seconds of each round, from the request to the new model."""

    begin = 0.0

    def start(self) -> bool:
        """Wait for the next request; False if there is none."""
        wanted = wait()
        self.begin = time.perf_counter()
        return wanted

    def stop(self) -> None:
        """Tell how long the round took."""
        say(seconds=time.perf_counter() - self.begin)


def serve(one_round: Callable[[], None]) -> None:
    """Do rounds until nobody asks for more."""
    clock = Clock()
    while clock.start():
        one_round()
        clock.stop()


def torch_model() -> Any:
    """Return the network of the work."""
    from torch import nn

    if WORK["model"] == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    convolutions = [nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10))
