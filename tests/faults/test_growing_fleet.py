"""A real fleet that grows from 2 nodes to 10, loses 3 by SIGKILL and gets them back, against its replay."""

import json
import re

import numpy as np
import pytest
from fleet import THOROUGH

import fedweave as fw
from fedweave.fleet.local.new_app import write_app
from fedweave.fleet.local.processes import Processes
from flower.rehearsal import Replay, reasons

NODES, EARLY, ASKED, ROUNDS = 10, 2, 4, 9
GROWN, KILLED, MISSED, BACK = 3, 4, 6, 8  # rounds: all are there, 3 are killed, the server has noticed, all are back
ASKS = re.compile(r"fedweave: round (\d+) asks clients ([\d ]+)")
# Rounds wait for what the test does meanwhile, and note what the server knew when it chose the cohort.
NOTES = """
import json
from fedweave.fleet.server.roster import Roster

gather, notes = Roster.gather, []

def noted(self):
    while True:
        there = gather(self)
        if there.sum() == WANTED.get(len(notes), there.sum()):
            break
        self._clock.sleep(1)
    notes.append({"there": there.tolist(), "samples": self.samples.tolist(), "node": self.node})
    with open(FILE, "w") as file:
        json.dump(notes[1:], file)  # the first look is before the first round
    return there

Roster.gather = noted
"""


class Growing(Processes):
    """Starts the first nodes only; the keys of all are registered."""

    def start_node(self, client, *options, **kwargs):
        return super().start_node(client, *options, **kwargs) if client < EARLY or self.grows else None

    grows = False


def app_with_notes(folder):
    write_app(folder / "trial", "fedavg", per_round=ASKED)
    server = folder / "trial/trial/server_app.py"
    wanted = {GROWN: NODES, MISSED: NODES - 3, BACK: NODES}
    settings = f"\nFILE, WANTED = {str(folder / 'notes.json')!r}, {wanted}\n"
    server.write_text(server.read_text() + settings + NOTES)
    return folder / "trial"


@pytest.mark.skipif(not THOROUGH, reason="several minutes with real processes: make faults")
def test_a_real_fleet_that_grows_and_loses_nodes_is_its_replay_in_the_simulator(tmp_path):
    app, folder, killed = app_with_notes(tmp_path), tmp_path / "run", []
    config = {"rounds": ROUNDS, "clients": NODES, "connected": EARLY, "answer-seconds": 60.0, "start-seconds": 600.0}
    with Growing(NODES) as fleet:
        fleet.grows = True

        def on_line(line):
            if not (found := ASKS.search(line)):
                return
            if found[1] == "1":
                for client in range(EARLY, NODES):
                    fleet.start_node(client)
            if int(found[1]) == KILLED:
                killed.extend(int(client) for client in found[2].split()[:3])
                for client in killed:
                    fleet.kill(client)
            if int(found[1]) == MISSED:  # Flower takes a key again once it has noticed that its node was gone
                for client in killed:
                    fleet.start_node(client)

        fleet.run(app, {**config, "keys": str(fleet.folder / "keys"), "out": str(folder)}, on_line)
        log = fleet.log("run", 10_000)
    result, notes = fw.load_result(folder), json.loads((tmp_path / "notes.json").read_text())
    there, rows = np.array([note["there"] for note in notes]), result.clients
    assert len(killed) == 3
    assert there.sum(1)[[0, GROWN - 1, MISSED - 1, BACK - 1]].tolist() == [EARLY, NODES, NODES - 3, NODES]
    assert there[rows["round"] - 1, rows["client"]].all(), "every cohort is drawn from those who are there"
    lost = [rows["client"][(rows["round"] == r) & (rows["received"] == 0)].tolist() for r in range(1, ROUNDS + 1)]
    assert sorted(lost[KILLED - 1]) == sorted(killed)
    assert {c for r in lost for c in r} == set(killed), "and of nobody else an answer is missing"
    assert not any(lost[MISSED - 1 :])
    for round, why in reasons(folder):
        client, reason = re.fullmatch(r"client (\d+): (its node is gone|did not answer within 60 s)", why).groups()
        node = notes[round - 1]["node"][client]
        assert f"round {round}, client {client} (node {node}, partition-id={client}): {reason}" in log
    world = Replay(there.tolist(), [note["samples"] for note in notes], lost)
    replayed = fw.run(
        fw.Experiment(
            method=fw.methods.fedavg(ASKED),
            data="digits",
            partition=fw.partition.parse("dirichlet:0.5", NODES),
            system=world,
            rounds=ROUNDS,
            lr=0.05,
            epochs=1,
            batch_size=20,
            workers=1,
        )
    )
    assert result.summary["digest"] == replayed.summary["digest"]
    for column in ("round", "client", "received", "steps"):
        assert np.array_equal(rows[column], replayed.clients[column]), column
