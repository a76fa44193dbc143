"""``fedweave flower doctor`` finds from outside what is wrong with a fleet: a real SuperLink, and small fakes."""

import ipaddress
import json
import socket
from base64 import b64encode
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.proto.node_pb2 import NodeInfo

from fedweave.core.settings import BadInput
from fedweave.fleet.doctor import expected as expectations
from fedweave.fleet.doctor import findings, probe, requests
from fedweave.fleet.doctor.certificates import is_made_for
from fedweave.fleet.doctor.expected import Expected, known_keys
from fedweave.fleet.doctor.findings import examine, judge
from fedweave.fleet.doctor.machine import Running
from fedweave.fleet.doctor.probe import Facts
from fedweave.fleet.doctor.requests import Address, Clock, Requests
from fedweave.fleet.local import keys
from fedweave.fleet.local.processes import HOST, Processes, free_port
from flower.fake_link import FakeLink, saying, serving
from flower.test_command import run

OUTSIDE = "127.0.0.2"  # stands for an address at which others reach this machine


@pytest.fixture(autouse=True)
def loopback(monkeypatch):
    """Let only 127.0.0.1 be the loopback address, and nothing of a real fleet on this machine be seen."""
    monkeypatch.setattr(expectations, "is_loopback", lambda address: address == HOST)
    monkeypatch.setattr(findings, "running", lambda program: [])
    monkeypatch.setattr(requests, "SECONDS", 60.0)  # all that is asked here answers, or hangs up


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return keys.server_files(tmp_path_factory.mktemp("keys"), ["localhost", HOST, OUTSIDE])


def pem(path):
    """Return a public key as the SuperLink keeps it."""
    public = load_ssh_public_key(path.with_name(f"{path.name}.pub").read_bytes())
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def levels(found, check):
    return [f.level for f in found if f.check == check]


def what(found, check):
    (finding,) = [f for f in found if f.check == check]
    return finding.what


def look(link, files=None, host=HOST, **known):
    with serving(link, files, (host, 0)) as address:
        return examine([address], Expected(own=(), **known))


def test_a_real_superlink(monkeypatch, tmp_path):
    monkeypatch.undo()  # its process is seen, and only 127.0.0.0/8 is loopback
    mine, strange = keys.node_key(tmp_path / "known", "node0"), keys.node_key(tmp_path, "stranger")
    with Processes(0) as fleet:
        address, ca = Address(HOST, fleet.port), str(fleet.folder / "keys/ca.crt")
        link = Requests(address, tls=True)
        for key in (mine, strange):  # whoever reaches the port registers nodes: the reason for all this
            assert link.post("/v1/control/register-node", RegisterNodeRequest(public_key=pem(key))).status == 200
        given = {"known": known_keys([tmp_path / "known"]), "roots": ca, "own": ()}
        found = examine([address], Expected(**given))
        assert levels(found, "control") == levels(found, "certificate") == levels(found, "authentication") == ["ok"]
        assert levels(found, "clock") == levels(found, "version") == ["ok"]
        assert levels(found, "nodes") == ["warning"], "the stranger is not online"
        assert any("in memory" in f.what and f.level == "warning" for f in found), "no --database was given"
        monkeypatch.setattr(expectations, "is_loopback", lambda address: False)
        opened = examine([address], Expected(**given))
        assert levels(opened, "control") == ["critical"]
        # The clock's limits are what this server really accepts: 401 is a refused signature, 412 an unknown key.
        offsets = 3, 60, -200, -310
        assert [signed(link, seconds) for seconds in offsets] == [412, 401, 412, 401]
        assert [clock_level(seconds) for seconds in offsets] == ["warning", "critical", "warning", "critical"]


def signed(link, seconds):
    """Return how the link answers a node whose clock is ahead by some seconds."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    at = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    signature = key.sign(at.encode(), ec.ECDSA(hashes.SHA256()))
    named = {"flwr-public-key": public, "flwr-signature": signature}
    headers = {name: b64encode(value).decode() for name, value in named.items()} | {"flwr-timestamp": at}
    return link.post("/v1/fleet/activate-node", ActivateNodeRequest(public_key=public), headers).status


def clock_level(seconds):
    """Return the level of a clock of this machine that is ahead by some seconds."""
    facts = Facts(Address(HOST, 1), "http", title="SuperLink API", clock=Clock(-seconds, -seconds))
    (level,) = levels(judge(facts, Expected(own=())), "clock")
    return level


@pytest.mark.parametrize(
    ("link", "host", "trusted", "level"),
    [
        (FakeLink(), HOST, [], "ok"),
        (FakeLink(), OUTSIDE, [], "critical"),
        (FakeLink(), OUTSIDE, ["127.0.0.0/24"], "ok"),
        (FakeLink(), OUTSIDE, ["10.0.0.0/8"], "critical"),
        (FakeLink(control="account"), OUTSIDE, [], "ok"),
        (FakeLink(title=None, control="filtered", runtime=False), OUTSIDE, [], "ok"),
        (FakeLink(control="garbage"), OUTSIDE, [], "critical"),
        (FakeLink(control="failing"), OUTSIDE, [], "unknown"),
        (FakeLink(control="silent"), OUTSIDE, [], "unknown"),
    ],
)
def test_control_is_critical_where_strangers_reach_it(files, link, host, trusted, level):
    found = look(link, files, host, trusted=[ipaddress.ip_network(t) for t in trusted])
    assert levels(found, "control") == [level]
    assert all(f.mend for f in found if f.level != "ok"), "each says how to mend it"


def test_requests_of_running_apps_must_be_filtered_too(files):
    """Flower hands out tasks without credentials, so a proxy that stops only /v1/control/ is not enough."""
    assert levels(look(FakeLink(control="filtered"), files, OUTSIDE), "runtime") == ["critical"]
    assert levels(look(FakeLink(control="filtered", runtime=False), files, OUTSIDE), "runtime") == []


@pytest.mark.parametrize(("host", "level"), [(HOST, "ok"), (OUTSIDE, "critical")])
def test_the_port_of_a_node_is_for_its_own_app(host, level):
    found = look(FakeLink(title="SuperNode API", control="filtered", fleet=False), host=host)
    assert [(f.check, f.level) for f in found] == [("runtime", level)]


@pytest.mark.parametrize(("host", "level"), [(HOST, "warning"), (OUTSIDE, "critical")])
def test_no_tls_and_nodes_without_keys(host, level):
    link = FakeLink(admits=True)
    found = look(link, host=host)
    assert levels(found, "tls") == levels(found, "authentication") == [level]
    paths = [path for path, *_ in link.asked]
    at = paths.index("/v1/fleet/register-node")
    assert paths[at + 1] == "/v1/fleet/unregister-node", "the node of the test is removed at once"
    assert link.asked[at][2]["flwr-public-key"] == link.asked[at + 1][2]["flwr-public-key"]
    assert link.asked[at + 1][1] == b"\x08\x4d", "node 77"
    assert not [p for p in paths if "activate" in p or "acquire" in p], "no run sees it, and no task is taken"


def test_certificates(files, tmp_path):
    def found(made, roots=files.ca, host=HOST):
        return [(f.level, f.what.split(":")[0]) for f in look(FakeLink(), made, host, roots=str(roots))
                if f.check == "certificate"]  # fmt: skip

    ((level, text),) = found(files)
    assert (level, text[:48]) == ("ok", "The certificate is signed by the given root and ")
    today = datetime.now(UTC)
    expired = keys.server_files(tmp_path / "expired", [HOST], days=-0.02)
    assert found(expired, expired.ca) == [
        ("critical", f"The certificate expired on {today - timedelta(minutes=29):%Y-%m-%d}."),
        ("critical", f"A root certificate that was given expired on {today - timedelta(minutes=29):%Y-%m-%d}."),
    ]
    soon = keys.server_files(tmp_path / "soon", [HOST], days=29)
    assert [level for level, _ in found(soon, soon.ca)] == ["warning", "warning"]
    enough = keys.server_files(tmp_path / "enough", [HOST], days=31)
    assert [level for level, _ in found(enough, enough.ca)] == ["ok"]
    assert found(enough) == [("critical", "The certificate is not signed by the given root")]
    text = f"The certificate is not made for {OUTSIDE}, so nodes and users refuse it at this address."
    assert found(enough, enough.ca, OUTSIDE) == [("critical", text)]
    unchecked = look(FakeLink(), files)
    assert levels(unchecked, "certificate") == ["unknown"], "without a root, who signed it is not claimed"


@pytest.mark.parametrize("cut", [2, 3, 4])
def test_a_certificate_is_checked_only_if_the_connection_lasted(files, cut, monkeypatch):
    """The connections of a probe in turn: is anyone there, is it TLS, the certificate, the certificate by the roots."""
    calls = iter(range(1, 99))

    def connect(address):
        if next(calls) != cut:
            return requests.connect(address)
        here, there = socket.socketpair()
        there.close()
        return here

    monkeypatch.setattr(probe, "connect", connect)
    found = [f for f in look(FakeLink(), files, roots=str(files.ca)) if f.check == "certificate"]
    assert all(f.level != "ok" for f in found)
    if cut == 4:
        assert [f.what for f in found] == [
            "Whether the certificate is signed by the given root could not be found out."
        ]
        assert found[0].level == "unknown"


def test_names_of_a_certificate(tmp_path):
    from cryptography import x509

    made = keys.server_files(tmp_path, ["fl.example.org", "*.fleet.example.org", "10.0.0.5"])
    certificate = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    yes = ["fl.example.org", "FL.example.org.", "a.fleet.example.org", "10.0.0.5"]
    no = ["example.org", "fleet.example.org", "a.b.fleet.example.org", "10.0.0.6", "localhost"]
    assert [name for name in yes + no if is_made_for(certificate, name)] == yes


@pytest.mark.parametrize(
    ("ahead", "level"), [(0, "ok"), (60, "ok"), (200, "warning"), (330, "critical"), (-30, "critical")]
)
@pytest.mark.parametrize("control", ["open", "filtered"])
def test_clocks(ahead, level, control):
    """By the time in the list of nodes, or where that is filtered by the Date of answers, which is a bit vague."""
    link, begin = FakeLink(ahead=ahead, control=control), datetime.now(UTC)
    assert levels(look(link), "clock") == [level]
    spent = datetime.now(UTC) - begin
    signed_at = next(h["flwr-timestamp"] for path, _, h in link.asked if path.endswith("register-node"))
    off = datetime.fromisoformat(signed_at) - begin - timedelta(seconds=ahead)
    assert abs(off) <= 2 * spent + timedelta(seconds=2), "the test of keys is signed with the server's time"


def test_a_clock_that_cannot_be_measured_is_not_judged():
    assert levels(look(FakeLink(control="filtered", date=False)), "clock") == ["unknown"]


def test_nodes_are_compared_with_the_known_keys(tmp_path):
    made = [keys.node_key(tmp_path / "known", f"node{i}") for i in range(2)]
    strange = keys.node_key(tmp_path, "stranger")
    nodes = [NodeInfo(node_id=i, status="online", public_key=pem(key)) for i, key in enumerate(made)]
    known = known_keys([tmp_path / "known"])
    assert levels(look(FakeLink(nodes=nodes), known=known), "nodes") == ["ok"]
    gone = NodeInfo(node_id=8, status="unregistered", public_key=pem(strange))
    assert levels(look(FakeLink(nodes=[*nodes, gone]), known=known), "nodes") == ["ok"]
    for status, level in (("online", "critical"), ("offline", "warning"), ("registered", "warning")):
        other = NodeInfo(node_id=9, status=status, public_key=pem(strange))
        found = look(FakeLink(nodes=[*nodes, other]), known=known)
        assert levels(found, "nodes") == [level]
        assert f"Node 9 ({status})" in what(found, "nodes")
    garbage = NodeInfo(node_id=9, status="online", public_key=b"-----BEGIN nothing")
    assert levels(look(FakeLink(nodes=[*nodes, garbage]), known=known), "nodes") == ["critical"]
    assert what(look(FakeLink(nodes=nodes[:1]), known=known), "nodes") == "Not registered: node1."
    assert levels(look(FakeLink(nodes=nodes)), "nodes") == ["unknown"]
    assert levels(look(FakeLink(control="filtered", nodes=nodes), known=known), "nodes") == ["unknown"]
    together = tmp_path / "all.txt"
    together.write_bytes(b"".join(path.with_name(f"{path.name}.pub").read_bytes() for path in made))
    assert known_keys([together]).keys() == known.keys()
    for bad in (tmp_path / "nowhere", made[0], tmp_path):
        (tmp_path / "stranger.pub").unlink(missing_ok=True)
        with pytest.raises(BadInput, match="--known"):
            known_keys([bad])


@pytest.mark.parametrize(
    ("version", "level"), [("1.41.0", "ok"), ("1.41.9", "ok"), ("1.40.0", "critical"), ("1.99.0", "warning")]
)
def test_versions(monkeypatch, version, level):
    monkeypatch.setattr(findings, "version", lambda package: "1.41.0")
    assert levels(look(FakeLink(version=version)), "version") == [level]


def test_what_only_the_server_can_tell(monkeypatch):
    def found(*words, root=False, host=HOST):
        monkeypatch.setattr(findings, "running", lambda program: [Running(["/bin/flower-superlink", *words], root)])
        facts = Facts(Address(host, 8000), "http", title="SuperLink API")
        return [f.level for f in judge(facts, Expected(own=())) if f.check == "process"]

    assert found() == ["warning"]
    assert found("--database", "state.db") == found("--database=state.db", "--port=8000") == ["ok"]
    assert found("--database", ":flwr-in-memory:") == ["warning"]
    assert found("--database", "state.db", root=True) == ["ok", "warning"]
    assert found("--database", "state.db", "--port", "8001") == ["unknown"], "another one"
    assert found("--database", "state.db", host=OUTSIDE) == ["unknown"], "not on this machine"


def test_other_things_that_answer(files):
    settings_frame = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    nothing = Address(HOST, free_port())
    assert what(examine([nothing], Expected(own=())), "reach") == "The connection is refused."
    with saying(lambda heard: settings_frame if heard.startswith(b"PRI") else b"") as grpc:
        found = examine([grpc], Expected(own=()))
        assert levels(found, "control") == levels(found, "tls") == ["warning"]
    with serving(FakeLink(http=False), files) as secure:  # over TLS, with HTTP/2 only
        found = examine([secure], Expected(own=(), roots=str(files.ca)))
        assert [(f.check, f.level) for f in found] == [("control", "warning"), ("certificate", "ok")]
    with saying(lambda heard: b"SSH-2.0-OpenSSH_9.2\r\n") as ssh:
        assert "neither TLS nor HTTP" in what(examine([ssh], Expected(own=())), "reach")
    with serving(FakeLink(title="Another API", control="filtered", fleet=False)) as other:
        assert what(examine([other], Expected(own=())), "reach") == "What answers is not a SuperLink."


def test_the_other_addresses_of_this_machine_are_tried(monkeypatch, files):
    """A link on all interfaces answers at 127.0.0.1 and at every other address of the machine."""
    with serving(FakeLink(), files) as inside, serving(FakeLink(), files, (OUTSIDE, inside.port)):
        found = examine([inside], Expected(own=(OUTSIDE,)))
        assert [(f.level, f.address) for f in found if f.check == "control"] == [
            ("ok", str(inside)),
            ("critical", f"{OUTSIDE}:{inside.port}"),
        ]
        monkeypatch.setattr(findings, "GRPC_PORTS", ())
        monkeypatch.setattr(findings, "PORTS", {"flower-superlink": inside.port})
        assert [f.level for f in examine([], Expected(own=(OUTSIDE,))) if f.check == "control"] == ["ok", "critical"]
    assert levels(examine([], Expected(own=(OUTSIDE,))), "reach") == ["warning"], "none is there"


def test_the_command(monkeypatch, capsys, files, tmp_path):
    node = keys.node_key(tmp_path / "known", "node0")
    nodes = [NodeInfo(node_id=1, status="online", public_key=pem(node))]
    monkeypatch.setattr(expectations, "own_addresses", list)
    options = ["--root-certificates", files.ca, "--known", tmp_path / "known"]
    with serving(FakeLink(nodes=nodes), files) as good, serving(FakeLink(nodes=nodes)) as bad:
        monkeypatch.setattr(findings, "running", lambda program: [Running(
            ["flower-superlink", "--database=s", f"--port={good.port}"], False)])  # fmt: skip
        code, out, _ = run(monkeypatch, capsys, "flower", "doctor", "--address", good, *options)
        assert code == 0, out
        assert {line.split()[0] for line in out.splitlines()} <= {"ok", "unknown", "→"}
        code, out, _ = run(monkeypatch, capsys, "flower", "doctor", "--address", good, "--address", bad, "--json")
        shown = json.loads(out)
    assert (code, shown["healthy"]) == (1, False)
    assert {(f["level"], f["check"]) for f in shown["findings"] if f["address"] == str(bad)} >= {("warning", "tls")}
    assert all(f.keys() == {"level", "check", "address", "what", "mend"} for f in shown["findings"])


def test_wrong_input(monkeypatch, capsys, tmp_path):
    words = ["--address", "fleet", "--address", "https://x:1", "--trusted", "10.8.0.1/24", "--known", tmp_path]
    code, out, err = run(monkeypatch, capsys, "flower", "doctor", *words, "--root-certificates", tmp_path / "no")
    assert (code, out) == (2, "")
    for says in ("'fleet'", "'https://x:1'", "'10.8.0.1/24'", "no *.pub", "--root-certificates must be"):
        assert says in err
