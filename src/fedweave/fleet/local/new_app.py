"""Write a small Flower app to start from: ``fedweave flower new``.

It has what Flower's Hub asks of an app (format 1 of its bundles): ``flwr build`` and ``flwr app publish`` take it.
"""

from __future__ import annotations

import keyword
import re
import tomllib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from string import Template
from typing import Any

from fedweave.core.settings import BadInput
from fedweave.store.run_folder import refuse_used, writable

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$project"
version = "0.1.0"
description = "Federated learning with $method of fedweave"
readme = "README.md"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41,<1.43", "fedweave[flower,torch,data]>=$version"]

[tool.hatch.build.targets.wheel]
packages = ["$package"]

[tool.flwr.app]
publisher = "me"  # to publish it: the name of your Flower account
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "$package.server_app:app"
clientapp = "$package.client_app:app"

# `flwr run . -c "rounds=50"` changes any of these for one run.
[tool.flwr.app.config]
method = "$method"        # a name of `fedweave list methods`
per-round = $per_round    # clients drawn in a round; FedACS draws some twice and asks them once; from three on, one
                          # that claims too much stands out
rounds = 20
lr = 0.05
epochs = 1                # local passes over a client's data in a round
batch-size = 20
seed = 0
clients = 3               # how many there are; 0: as many as most nodes say, so keep it where nodes may lie
connected = 0             # how many must be there before a round begins; 0: all before the first
keys = ""                 # a folder with node0.pub, node1.pub, …: each seat is then its key's alone; an absolute path
start-seconds = 600       # how long to wait for the clients
answer-seconds = 600      # how long a round waits for answers
out = ""                  # a folder to keep the run in, and to continue it from after a crash; an absolute path
"""

# What `fedweave flower demo` sets in an app.
DEMO_SETS = ("method", "per-round", "rounds", "seed", "clients", "keys", "start-seconds", "answer-seconds", "out")

TASK = '''\
"""The clients' data and the model. Here: scikit-learn's digits, unevenly divided, and a small network.

A model by name is built for the features and classes of the data, on each client and on the server: these must be the
same for all of them, so CLASSES counts also those that a client does not have. The server's test set is in
server_app.py; clients need not have it, and never send theirs.
"""

from fedweave import flower

MODEL = "auto"  # a name of `fedweave list models`, or a function that returns a torch module

# Called as load_partition(partition_id, num_partitions) on the client. With its own samples instead:
#
# import numpy as np
# import fedweave as fw
# CLASSES = 5
# def load_partition(partition_id, num_partitions):
#     x, y = np.load("/data/x.npy"), np.load("/data/y.npy")  # float32 features (n, ...), int64 labels from 0
#     return fw.data.Dataset("mine", x, y, x[:0], y[:0], CLASSES)
load_partition = flower.dealt("digits", "dirichlet:0.5")
'''

CLIENT_APP = '''\
"""The client app: local training on the server's request."""

from fedweave import flower
from $package.task import MODEL, load_partition

app = flower.client(MODEL, load_partition)
'''

SERVER_APP = '''\
"""The server app: the method, the number of rounds, and when a round closes."""

import fedweave as fw
from fedweave import flower
from $package.task import MODEL

# The server evaluates on the test samples of a data set. With samples of your own, as in task.py:
#
# import numpy as np
# from $package.task import CLASSES
# x, y = np.load("/data/test_x.npy"), np.load("/data/test_y.npy")
# TEST = fw.data.Dataset("test", x[:1], y[:1], x, y, CLASSES)
TEST = "digits"


def experiment(config):
    """Return what to train; ``config`` is [tool.flwr.app.config]."""
    return fw.Experiment(
        method=getattr(fw.methods, config["method"])(config["per-round"]),
        data=TEST,
        model=MODEL,
        system=fw.system.Measured(),  # the server estimates links and latencies
        rounds=config["rounds"],
        lr=config["lr"],
        epochs=config["epochs"],
        batch_size=config["batch-size"],
        seed=config["seed"],
        audit=True,  # a chained line for every answer: `fedweave verify`
    )


def terms(config):
    """Return when a round begins and closes."""
    return flower.Terms(
        clients=config["clients"] or None,
        connected=config["connected"] or None,
        keys=config["keys"] or None,
        start_seconds=config["start-seconds"],
        answer_seconds=config["answer-seconds"],
    )


app = flower.server(experiment, terms=terms)
'''

README = """\
# $project

`$method` of fedweave as a Flower app. On one machine, four terminals, each of them with

```
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
```

and one of

```
flower-superlink --insecure --disable-runtime-dependency-installation
flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9094 --node-config 'partition-id=0 num-partitions=3'
flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9095 --node-config 'partition-id=1 num-partitions=3'
flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9096 --node-config 'partition-id=2 num-partitions=3'
```

and in `~/.flwr/config.toml`

```toml
[superlink]
default = "fleet"

[superlink.fleet]
address = "127.0.0.1:8000"
insecure = true
```

Then, in a fifth with the same `export`, `flwr run . --stream`. With another number of nodes change `clients` in
pyproject.toml too. `fedweave flower demo .` does all of this for four rounds, encrypted, and leaves nothing behind.
Over a real network use certificates and node keys: `fedweave flower keys`, and docs/deploy.md of fedweave.

`flwr build` packs the app into one file. To offer it to others on Flower's Hub, put the name of your account into
`publisher` in pyproject.toml, then `flwr login` and `flwr app publish .`; they get it by `flwr new @account/$project`.
"""

GITIGNORE = """\
__pycache__/
*.fab
"""


def write_app(folder: Path, method: str, per_round: int = 3) -> list[Path]:
    """Write an app that ``flwr run`` and ``flwr build`` accept, and return its files."""
    from fedweave import __version__

    project, package = _names(folder)
    refuse_used(folder, "run.sqlite")
    values = {
        "package": package,
        "project": project,
        "method": method,
        "per_round": per_round,
        "version": __version__,
    }
    content = {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        "LICENSE": _license(),
        ".gitignore": GITIGNORE,
        f"{package}/__init__.py": f'"""The app {package}."""\n',
        f"{package}/task.py": TASK,
        f"{package}/client_app.py": CLIENT_APP,
        f"{package}/server_app.py": SERVER_APP,
    }
    with writable(folder):
        (folder / package).mkdir(parents=True, exist_ok=True)
        for name, text in content.items():
            (folder / name).write_text(Template(text).substitute(values), encoding="utf-8")
    return [folder / name for name in content]


def app_config(folder: Path) -> Mapping[str, Any]:
    """Return the settings of an app that this module wrote, as its owner has changed them."""
    try:
        found = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    except (OSError, ValueError, LookupError, TypeError):
        found = {}
    if missing := [name for name in DEMO_SETS if name not in found]:
        raise BadInput(
            f"{str(folder)!r} is not an app of `fedweave flower new`: [tool.flwr.app.config] of its pyproject.toml "
            f"lacks {', '.join(missing)}."
        )
    return found


def _names(folder: Path) -> tuple[str, str]:
    """Return the names of the app and of its package; Flower builds no app from a folder with another kind of name."""
    project = folder.resolve().name
    package = project.replace("-", "_").lower()
    if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?", project):
        raise BadInput(
            f"The folder's name becomes that of the app: a letter, then letters, digits and hyphens, such as "
            f"'my-fleet', at most 32 characters. Got {project!r} instead."
        )
    if keyword.iskeyword(package) or package == "fedweave":
        raise BadInput(
            f"The folder's name becomes that of a Python package, and {package!r} is not valid: choose another."
        )
    return project, package


def _license() -> str:
    """Return the licence of the template, which is fedweave's own."""
    try:
        text = distribution("fedweave").read_text("licenses/LICENSE")
    except PackageNotFoundError:
        text = None
    return text or "Licensed under the Apache License, Version 2.0: https://www.apache.org/licenses/LICENSE-2.0\n"
