"""Judge what the addresses of a fleet answer: what is wrong, how bad it is, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version

from cryptography.exceptions import UnsupportedAlgorithm
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

from fedweave.fleet.doctor.certificates import judge_certificate
from fedweave.fleet.doctor.expected import Expected, in_one_form
from fedweave.fleet.doctor.finding import Finding
from fedweave.fleet.doctor.machine import PORTS, running
from fedweave.fleet.doctor.probe import NODE, Facts, probe
from fedweave.fleet.doctor.requests import Address, Node

OLDEST = (1, 41)  # the Flower that this was written for
DOCS = "docs/deploy.md"
GRPC_PORTS = (9091, 9092, 9093)  # of older releases: apps, nodes, control
IN_MEMORY = ":flwr-in-memory:"
CONTROL = {
    "open": "Control requests are answered, on a loopback address or in a trusted network.",
    "account": "Control requests need an account.",
    "filtered": "Control requests are not handed on.",
}


def examine(addresses: Sequence[Address], expected: Expected) -> list[Finding]:
    """Return the findings on these addresses, or without any on the usual ports of this machine.

    For an address on the loopback interface, the same port is tried at the other addresses of this machine too.
    """
    given = addresses or [Address("127.0.0.1", port) for port in (*PORTS.values(), *GRPC_PORTS)]
    aliases = [
        Address(own, a.port) for a in given if a.host in ("127.0.0.1", "::1", "localhost") for own in expected.own
    ]
    found: list[Finding] = []
    links = 0
    for address in dict.fromkeys([*given, *aliases]):
        facts = probe(address, expected.roots)
        links += facts.is_link
        if facts.is_link or facts.title == NODE or facts.speech == "grpc":
            found += judge(facts, expected) if address in given else _requests(facts, expected)
        elif address in addresses:
            found.append(_not_a_link(facts))
    if not addresses and not links:
        what = f"No SuperLink answers on port {PORTS['flower-superlink']} of this machine."
        found.append(Finding("warning", "reach", "", what, "Give --address HOST:PORT, or start the SuperLink."))
    return found


def judge(facts: Facts, expected: Expected) -> list[Finding]:
    """Return the findings on a SuperLink, a SuperNode, or an older one of either."""
    found = [*_requests(facts, expected)]
    if facts.tls:
        found += judge_certificate(facts, expected)
    elif facts.title != NODE:  # between a SuperNode and its own app on the same machine it is no matter
        found.append(_no_tls(facts, expected))
    if facts.is_link:
        found += [_admission(facts, expected), *_nodes(facts, expected), _clock(facts), _version(facts)]
        found += _processes(facts.address, expected)
    return found


def _not_a_link(facts: Facts) -> Finding:
    says = {
        "closed": "The connection is refused.",
        "silent": "Nothing answers.",
        "other": "What answers speaks neither TLS nor HTTP.",
    }
    what = says.get(facts.speech, "What answers is not a SuperLink.")
    mend = "Check the address, --host and --port of flower-superlink, the proxy and the firewall."
    return Finding("warning", "reach", str(facts.address), what, mend)


def _requests(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """Judge who may run code: control requests and those of running apps must not reach strangers."""
    here, outside = str(facts.address), expected.is_open(facts.address.host)
    mend = f"Bind it with --host to 127.0.0.1 or a VPN address, and let a proxy hand on /v1/fleet/ alone ({DOCS})."
    if facts.speech == "grpc":
        what = "A gRPC server answers, as Flower before 1.41 has on 9091 to 9093: what it serves cannot be told apart."
        yield Finding("critical" if outside else "warning", "control", here, what, f"Update Flower. {mend}")
    elif facts.title == NODE:
        what = "The port of a SuperNode, meant for its own app, "
        if outside:
            what += "is open: whoever reaches it can take tasks from the node and answer for it."
            yield Finding("critical", "runtime", here, what, "Start flower-supernode with --host 127.0.0.1.")
        else:
            yield Finding("ok", "runtime", here, f"{what}is reachable from here only.")
    elif facts.control == "open" and outside:
        what = "Control requests are answered without credentials: whoever reaches this port runs code on every node."
        yield Finding("critical", "control", here, what, mend)
    elif facts.control == "unknown":
        what = "Whether control requests are answered could not be found out."
        yield Finding("unknown", "control", here, what, f"Try again. {mend}")
    else:
        yield Finding("ok", "control", here, CONTROL[facts.control])
    if facts.is_link and facts.control != "open" and outside and facts.runtime is not False:
        what = "Requests of running apps are answered: whoever reaches this port can take over a run's server."
        if facts.runtime is None:
            what = "Whether requests of running apps are answered could not be found out."
        yield Finding("critical" if facts.runtime else "unknown", "runtime", here, what, mend)


def _no_tls(facts: Facts, expected: Expected) -> Finding:
    level = "critical" if expected.is_open(facts.address.host) else "warning"
    what = "There is no TLS: models and updates can be read and changed on the way."
    mend = "Create certificates (fedweave flower keys) and start flower-superlink with --ssl-*, without --insecure."
    return Finding(level, "tls", str(facts.address), what, mend)


def _admission(facts: Facts, expected: Expected) -> Finding:
    here = str(facts.address)
    mend = "Start flower-superlink with --enable-supernode-auth, and register each key: flwr supernode register."
    if facts.admits:
        level = "critical" if expected.is_open(facts.address.host) else "warning"
        what = "Any node is admitted: a new key was registered, and removed again, without credentials."
        return Finding(level, "authentication", here, what, mend)
    if facts.admits is False:
        return Finding("ok", "authentication", here, "A node needs a registered key.")
    what = "Whether nodes need a registered key could not be found out."
    return Finding("unknown", "authentication", here, what, mend)


def _nodes(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """Judge the nodes against the keys that the user knows."""
    here = str(facts.address)
    if facts.nodes is None:
        what = "Nodes cannot be listed here, because control requests are not answered."
        yield Finding("unknown", "nodes", here, what, "Check on the server itself, or through ssh -L.")
        return
    registered = [node for node in facts.nodes if node.status != "unregistered"]
    online = sum(node.status == "online" for node in registered)
    if expected.known is None:
        what = f"Registered nodes: {len(registered)}, online: {online}; whether all are yours was not checked."
        yield Finding("unknown", "nodes", here, what, "Give --known with the folder of their public keys.")
        return
    keys = {node.id: _key(node) for node in registered}
    strangers = [node for node in registered if keys[node.id] not in expected.known]
    for node in strangers:
        level = "critical" if node.status == "online" else "warning"
        what = f"Node {node.id} ({node.status}) has a key that is not among the known ones."
        mend = f"If it is not yours: flwr supernode unregister {node.id}, and find out who could register it."
        yield Finding(level, "nodes", here, what, mend)
    missing = expected.known.keys() - keys.values()
    if missing:
        names = ", ".join(sorted(expected.known[key] for key in missing))
        yield Finding("warning", "nodes", here, f"Not registered: {names}.", "Register them: flwr supernode register.")
    if not strangers and not missing:
        yield Finding("ok", "nodes", here, f"Registered nodes: {len(registered)}, online: {online}, all known.")


def _key(node: Node) -> bytes:
    """Return a node's key for comparison; one that cannot be read equals no other."""
    try:
        return in_one_form(node.key)
    except (ValueError, UnsupportedAlgorithm):
        return node.key


def _clock(facts: Facts) -> Finding:
    """Judge the clock: the link refuses what is signed too far ahead of its own clock or behind it."""
    here, clock = str(facts.address), facts.clock
    if clock is None:
        what = "The answers have no date, so the clocks could not be compared."
        return Finding("unknown", "clock", here, what, "Run timedatectl on both machines.")
    mend = "Let both machines follow a time server (timedatectl set-ntp true)."
    late = TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    refused = f"nodes whose clock is {SYSTEM_TIME_TOLERANCE} s ahead of the link's or {late} s behind it are refused"
    for certain, limit, which in (
        (-clock.high, SYSTEM_TIME_TOLERANCE, "ahead of"),
        (clock.low, late, "behind"),
    ):
        if certain > limit / 2:
            level = "critical" if certain >= limit else "warning"
            what = f"The clock of this machine is at least {certain:.0f} s {which} the server's; {refused}."
            return Finding(level, "clock", here, what, mend)
    most = max(abs(clock.low), abs(clock.high))
    return Finding("ok", "clock", here, f"The clocks of this machine and the server differ by at most {most:.1f} s.")


def _version(facts: Facts) -> Finding:
    here, ours = str(facts.address), version("flwr")
    if facts.version is None:
        what = f"The version of the SuperLink is not told here; this machine has Flower {ours}."
        return Finding("unknown", "version", here, what, "Check on the server itself: flower-superlink --version.")
    theirs = _release(facts.version)
    if theirs < OLDEST:
        what = f"The SuperLink is Flower {facts.version}; fedweave needs {'.'.join(map(str, OLDEST))} or later."
        return Finding("critical", "version", here, what, "Update the server: pip install -U 'fedweave[flower]'.")
    if theirs != _release(ours):
        what = f"The SuperLink is Flower {facts.version} and this machine has {ours}."
        mend = "Install the same minor release on the server and all nodes; Flower promises nothing for others."
        return Finding("warning", "version", here, what, mend)
    return Finding("ok", "version", here, f"The SuperLink is Flower {facts.version}, as on this machine ({ours}).")


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in text.split(".")[:2])


def _processes(address: Address, expected: Expected) -> Iterator[Finding]:
    """Judge the SuperLink's process, if it runs on this machine: nobody else can tell its options."""
    here = str(address)
    programs = running("flower-superlink") if expected.is_here(address.host) else []
    mine = [program for program in programs if program.port == address.port]
    if not mine:
        what = "Whether the SuperLink keeps its state in a file, and under which account it runs, cannot be told here."
        yield Finding("unknown", "process", here, what, "Check on the server itself, with rights to see its processes.")
    for program in mine:
        file = program.option("--database")
        if file in (None, IN_MEMORY):
            what = "The SuperLink keeps its state in memory: a restart loses registered nodes and runs."
            mend = "Start flower-superlink with --database state.db, in a folder that is backed up."
            yield Finding("warning", "process", here, what, mend)
        else:
            yield Finding("ok", "process", here, f"The SuperLink keeps its state in {file}.")
        if program.root:
            what = "The SuperLink runs as root, and so does the server's part of every app."
            yield Finding("warning", "process", here, what, f"Run it under an account of its own ({DOCS}).")
