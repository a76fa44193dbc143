"""``fedweave flower new | demo | keys``: what is written works, and what is wrong is said before anything begins."""

import ast
import ipaddress
import json
import signal
import stat
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

import fedweave as fw
from fedweave import flower
from fedweave.cli import app as cli
from fedweave.fleet.server.terms import VirtualClock


def run(monkeypatch, capsys, *words):
    """Return exit code, standard output and error output of the command line."""
    monkeypatch.setattr(sys, "argv", ["fedweave", *map(str, words)])
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as end:
            cli.main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    out, err = capsys.readouterr()
    return end.value.code, out, err


def test_new_writes_an_app_that_runs(monkeypatch, capsys, tmp_path):
    """Its two apps, loaded as Flower loads them, on a grid in this process."""
    code, out, _ = run(monkeypatch, capsys, "flower", "new", tmp_path / "my-fleet", "--method", "scaffold", "--json")
    files = json.loads(out)["files"]
    assert code == 0
    assert all("$" not in Path(f).read_text() for f in files)
    project = tomllib.loads((tmp_path / "my-fleet/pyproject.toml").read_text())
    app = project["tool"]["flwr"]["app"]
    assert app["config"]["method"] == "scaffold"
    clients = app["config"]["clients"]
    assert clients >= app["config"]["per-round"] >= 3, "the fleet's size is not for its nodes to say, and medians count"
    readme = (tmp_path / "my-fleet/README.md").read_text()
    assert readme.count("flower-supernode") == readme.count(f"num-partitions={clients}") == clients
    assert app["components"] == {"serverapp": "my_fleet.server_app:app", "clientapp": "my_fleet.client_app:app"}
    monkeypatch.syspath_prepend(tmp_path / "my-fleet")
    from my_fleet import client_app, server_app

    config = {**app["config"], "rounds": 1}
    grid = flower.LocalGrid(client_app.app, clients, bytes=True)
    result = flower.run(server_app.experiment(config), grid, server_app.terms(config), clock=VirtualClock())
    assert result.summary["method"] == "scaffold"
    assert result.rounds["received"].tolist() == [3]


def test_the_examples_in_the_comments_of_a_new_app_run_on_arrays_of_ones_own(monkeypatch, capsys, tmp_path):
    """Five classes of 20 numbers, and the clients have only three of the classes."""
    assert run(monkeypatch, capsys, "flower", "new", tmp_path / "own-data")[0] == 0
    for name, y in (("", np.arange(40) % 3), ("test_", np.arange(40) % 5)):
        np.save(tmp_path / f"{name}x.npy", np.ones((40, 20), np.float32))
        np.save(tmp_path / f"{name}y.npy", y)
    for name in ("task", "server_app"):
        path = tmp_path / f"own-data/own_data/{name}.py"
        lines = path.read_text().replace("/data/", f"{tmp_path}/").splitlines()
        begin = lines.index("#")
        end = next(i for i, line in enumerate(lines) if line.startswith(("load_partition =", "TEST =")))
        own = [line[2:] for line in lines[begin + 1 : end]]
        path.write_text("\n".join([*lines[:begin], *own, *lines[end + 1 :]]))
    monkeypatch.syspath_prepend(tmp_path / "own-data")
    from own_data import client_app, server_app

    config = tomllib.loads((tmp_path / "own-data/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    what, grid = server_app.experiment({**config, "rounds": 1}), flower.LocalGrid(client_app.app, 3)
    result = flower.run(what, grid, server_app.terms(config), clock=VirtualClock())
    assert result.rounds["received"].tolist() == result.rounds["asked"].tolist()


@pytest.mark.parametrize(
    ("words", "nodes", "expected"),
    [((), 3, ("scaffold", 3)), (("--method", "fedavg", "--nodes", "2"), 2, ("fedavg", 2))],
)
def test_the_demo_runs_an_app_of_ones_own(monkeypatch, capsys, tmp_path, words, nodes, expected):
    """With the app's own method, clients and cohort, unless the command says otherwise."""
    assert run(monkeypatch, capsys, "flower", "new", tmp_path / "mine", "--method", "scaffold")[0] == 0
    given = []

    def demonstrate(*args):
        given.extend(args[:3])
        raise fw.BadInput("far enough")

    monkeypatch.setattr("fedweave.fleet.local.demo.demonstrate", demonstrate)
    assert run(monkeypatch, capsys, "flower", "demo", tmp_path / "mine", *words)[2].endswith("far enough\n")
    app, config, size = given
    assert (app, size, (config["method"], config["per-round"])) == (tmp_path / "mine", nodes, expected)


def test_the_server_app_takes_its_settings_from_the_run(tmp_path):
    from flwr.app import Context, RecordDict

    from flower.rehearsal import CLIENTS, app, experiment

    server = flower.server(lambda config: experiment(rounds=config["rounds"]), out=tmp_path / "unused")
    grid = flower.LocalGrid(app(), CLIENTS)
    server(grid, Context(1, 1, {}, RecordDict(), {"rounds": 2, "out": str(tmp_path / "run")}))
    assert fw.load_result(tmp_path / "run").summary["rounds"] == 2
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["new", "x", "--method", "fedac"], "--method: There is no method 'fedac'. Did you mean 'fedacs'?"),
        (["demo", "--method", "fedis"], "--method fedis: IS must know what every client would answer"),
        (["new", "import"], "'import' is not valid"),
        (["new", "my_fleet"], "letters, digits and hyphens, such as 'my-fleet', at most 32 characters. Got 'my_fleet'"),
        (["new", "a" * 33], "at most 32 characters"),
        (["new", "full"], "already exists and is not empty"),
        (["demo", "--nodes", "1"], "--nodes must be a whole number from 2 to 64. Got '1' instead."),
        (["demo", "--kill", "4"], "--kill must be a whole number from 0 to 3. Got '4' instead."),
        (["demo", "--per-round", "9"], "--per-round must be a whole number from 1 to 4. Got '9' instead."),
        (["demo", "--kill", "1", "--rounds", "1"], "--kill takes effect in round 2"),
        (
            ["demo", "full"],
            "'full' is not an app of `fedweave flower new`: [tool.flwr.app.config] of its pyproject.toml",
        ),
        (["demo", "--node", "3"], "There is no option '--node'. Did you mean '--nodes'?"),
        (["demo", "--out", "full"], "--out: 'full' already exists"),
        (["keys", "k", "--host", "a", "--nodes", "0"], "--nodes must be a whole number from 1 to 100000"),
        (["keys", "k", "--host", "ü.example"], "--host must be names or addresses"),
    ],
)
def test_wrong_input_is_refused_and_leaves_nothing(monkeypatch, capsys, tmp_path, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    code, out, err = run(monkeypatch, capsys, "flower", *words)
    assert code == 2
    assert says in err
    assert not out
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["file"]


@pytest.mark.parametrize("command", ["new", "demo", "keys", "doctor"])
def test_help_has_an_example(monkeypatch, capsys, command):
    code, out, _ = run(monkeypatch, capsys, "flower", command, "--help")
    assert code == 0
    assert f"Example: fedweave flower {command}" in out


def test_keys_let_nodes_know_the_server_and_the_server_its_nodes(monkeypatch, capsys, tmp_path):
    words = ["keys", tmp_path / "k", "--host", "fl.example.org", "--host", "10.0.0.5", "--nodes", "2", "--days", "9"]
    code, _, err = run(monkeypatch, capsys, "flower", *words)
    assert code == 0, err
    authority, server = (
        x509.load_pem_x509_certificate((tmp_path / "k" / name).read_bytes()) for name in ("ca.crt", "server.pem")
    )
    trust = PolicyBuilder().store(Store([authority]))
    for host in (x509.DNSName("fl.example.org"), x509.IPAddress(ipaddress.ip_address("10.0.0.5"))):
        trust.build_server_verifier(host).verify(server, [])
    with pytest.raises(VerificationError):
        trust.build_server_verifier(x509.DNSName("elsewhere.org")).verify(server, [])
    days = (server.not_valid_after_utc - server.not_valid_before_utc).days
    assert days == 9
    private = [load_ssh_private_key((tmp_path / f"k/node{i}").read_bytes(), None) for i in (0, 1)]
    public = [load_ssh_public_key((tmp_path / f"k/node{i}.pub").read_bytes()) for i in (0, 1)]
    assert [key.public_key() for key in private] == public
    assert public[0] != public[1]
    for secret in ("server.key", "node0", "node1"):
        assert stat.S_IMODE((tmp_path / "k" / secret).stat().st_mode) == 0o600
    assert not [f for f in (tmp_path / "k").iterdir() if "ca" in f.name and "key" in f.name], "its key is forgotten"


def test_public_names():
    assert set(dir(flower)) == {"client", "dealt", "LocalGrid", "run", "server", "Strategy", "Terms"}
    assert all(hasattr(flower, name) for name in dir(flower))
    tree = ast.parse(Path(flower.__file__).read_text())
    typed = {
        a.asname
        for node in tree.body
        if isinstance(node, ast.If)
        for i in node.body
        if isinstance(i, ast.ImportFrom)
        for a in i.names
    }
    assert typed == set(dir(flower)), "what type checkers see is what there is"
    with pytest.raises(AttributeError, match="no attribute 'clients'"):
        _ = flower.clients
