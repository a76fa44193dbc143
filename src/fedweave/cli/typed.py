"""The options of ``run`` and ``compare`` as they are typed, with their help."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from cyclopts import Group, Parameter

Text = str | None
RULES = Group("When a round ends, and what it lets in", sort_key=1)


def help_text(text: str, metavar: str | None = None) -> Parameter:
    """Return the help of an option; its default is said in the text, in brackets."""
    return Parameter(help=text, metavar=metavar, show_default=False)


def rule(text: str, metavar: str) -> Parameter:
    """Return the help of an option on how rounds end and what they let in."""
    return Parameter(help=text, metavar=metavar, show_default=False, group=RULES)


Json = Annotated[
    bool, Parameter("--json", negative="", show_default=False, help="Print one JSON object and nothing else.")
]


@Parameter(name="*")
@dataclass(frozen=True)
class Typed:
    """The options of run and compare as typed; ``fedweave.cli.options`` checks them all at once."""

    data: Annotated[
        Text,
        help_text("digits, mnist5k, mnist, fashion_mnist, cifar10, ..., or a folder of images. [mnist5k]", "NAME"),
    ] = None
    partition: Annotated[
        Text,
        help_text(
            "iid, dirichlet:0.1, shards:2, classes:3, classes:2-10, one-class, split:0.1:0.9, natural. [dirichlet:0.5]",
            "FORM",
        ),
    ] = None
    clients: Annotated[Text, help_text("Number of clients. [20]", "N")] = None
    per_round: Annotated[Text, help_text("How many clients take part in a round. [5]", "K")] = None
    model: Annotated[Text, help_text("A name of `fedweave list models`. [fits the data]", "NAME")] = None
    submodels: Annotated[
        Text,
        help_text("What clients train in turn: shares of the model's widths, as 1,0.5, or models by name.", "LIST"),
    ] = None
    system: Annotated[
        Text,
        help_text(
            "uniform, static, dynamic, latency, lognormal, wireless, shannon, hybrid, hybrid+ or TRACE.csv. [uniform]",
            "NAME",
        ),
    ] = None
    rounds: Annotated[Text, help_text("Number of rounds. [30]", "R")] = None
    epochs: Annotated[Text, help_text("Local passes over the data per round; fractions are fine. [1]", "E")] = None
    steps: Annotated[Text, help_text("Local steps per round, instead of --epochs.", "T")] = None
    batch_size: Annotated[Text, help_text("Samples per local step. [20]", "B")] = None
    lr: Annotated[Text, help_text("Learning rate of the clients. [0.05]", "ETA")] = None
    calibrate: Annotated[
        Text, help_text("true: make every method's step as long as FedAvg's, each round. [false]", "BOOL")
    ] = None
    weights: Annotated[Text, help_text("The objective: data (clients count by samples) or equal. [data]", "KIND")] = (
        None
    )
    target: Annotated[
        Text, help_text("Test accuracy, 0 to 1: report rounds, time and bytes until it is reached.", "ACC")
    ] = None
    evaluate_every: Annotated[Text, help_text("Evaluate every so many rounds. [1]", "R")] = None
    true_gradients: Annotated[
        Text,
        help_text(
            "true: at each evaluation also take every client's gradient on all its data: diversity, length. [false]",
            "BOOL",
        ),
    ] = None
    seed: Annotated[Text, help_text("Same seed, same bits. [0]", "S")] = None
    seeds: Annotated[Text, help_text("How many seeds, from --seed on; only for compare. [1]", "COUNT")] = None
    engine: Annotated[
        Text,
        help_text("Where to train: local processes, or ray, a Ray cluster; the results are the same. [local]", "NAME"),
    ] = None
    workers: Annotated[
        Text, help_text("Training processes or actors: auto or a number; the results do not depend on it. [auto]", "N")
    ] = None
    device: Annotated[Text, help_text("auto, cpu or cuda. [auto]", "NAME")] = None
    tables: Annotated[
        Text, help_text("Where vectors remembered of every client are kept: ram, or disk when too many. [ram]", "PLACE")
    ] = None

    longest: Annotated[
        Text, rule("An update this many times as long as its round's median one is refused. [1000]", "TIMES")
    ] = None
    deadline: Annotated[
        Text, rule("Simulated seconds after which a round waits for nobody. [waits for all]", "SECONDS")
    ] = None
    over_selection: Annotated[
        Text, rule("Ask this many times as many clients as the method says; enough answers end the round. [1]", "TIMES")
    ] = None
    answers: Annotated[
        Text, rule("How many answers end a round. [all that were asked, without the over-selection]", "N")
    ] = None
    fewest: Annotated[Text, rule("With fewer usable answers a round is abandoned. [0]", "N")] = None
    failures: Annotated[
        Text, rule("When a client's training raises an exception: stop, or skip its answer. [stop]", "POLICY")
    ] = None
    quarantine: Annotated[Text, rule("Do not ask a client any more after so many refused answers. [never]", "N")] = None

    audit: Annotated[
        Text, rule("true: keep a chained log with a line for every answer; see `fedweave verify`. [false]", "BOOL")
    ] = None

    def given(self) -> dict[str, str]:
        """Return the options that were typed."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
