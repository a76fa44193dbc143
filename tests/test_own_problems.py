"""What trains in a PyTorch loop trains here: text, several labels or inputs, lazy data, tables, augmentation."""

import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedweave as fw

REAL = os.environ.get("FEDWEAVE_DATA", "")
RNG = np.random.default_rng(0)


def restored(module, x):
    """Return a module with the parameters of a run, as any PyTorch user would load them."""
    torch.nn.utils.vector_to_parameters(torch.from_numpy(x), module.parameters())
    return module.eval()


def interrupted(experiment, folder, after):
    """Run until ``after`` rounds are done, as if somebody then pressed Ctrl-C."""

    def watch(row):
        if row["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(fw.Interrupted):
        fw.run(experiment, folder, callbacks=watch)


def digest(experiment):
    return fw.run(experiment).summary["digest"]


@pytest.mark.skipif(not REAL, reason="FEDWEAVE_DATA is not set: the real files are not here")
def test_next_characters_of_ten_roles_are_predicted_better_than_by_a_bigram():
    data = fw.data.load("shakespeare")
    roles = np.argsort(-np.bincount(data.group), kind="stable")[:10]
    heard = np.isin(data.test_group, roles)
    test = {name: getattr(data, name)[heard] for name in ("test_x", "test_y", "test_group")}
    data = replace(data.take(np.isin(data.group, roles)), **test)
    counts = np.full((data.classes, data.classes), 0.1)
    np.add.at(counts, (data.x, data.y), 1)
    bigram = -np.log((counts / counts.sum(1, keepdims=True))[data.test_x, data.test_y]).mean()
    assert 2.3 < bigram < 2.6
    result = fw.run(
        fw.Experiment(fw.methods.fedavgm(4), data, lr=3.0, steps=8, batch_size=10, rounds=16, evaluate_every=16)
    )
    assert set(result.clients["client"]) <= set(range(10)), "roles are the clients"
    assert result.rounds["loss"][-1] < bigram - 0.05
    assert result.summary["metric"] == "perplexity"
    assert result.summary["value"] == pytest.approx(np.exp(result.rounds["loss"][-1]))


class Tagger(nn.Module):
    """Four yes-or-no answers, and what they were made from."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(10, 8), nn.Linear(8, 4)

    def forward(self, x):
        hidden = torch.tanh(self.hidden(x))
        return {"logits": self.out(hidden), "hidden": hidden}


def overlap(output, batch):
    """Return the labels that are both chosen and true, and those that are either."""
    chosen, true = output["logits"] > 0, batch.y > 0
    return (chosen & true).sum(), (chosen | true).sum()


TAGS = fw.Task(
    loss=lambda output, batch: F.binary_cross_entropy_with_logits(output["logits"], batch.y),
    metrics={"iou": overlap, "exact": lambda output, batch: ((output["logits"] > 0) == (batch.y > 0)).all(1)},
    primary="iou",
)


def test_several_labels_with_an_own_task_and_a_dict_output(tmp_path):
    x = RNG.standard_normal((600, 10)).astype(np.float32)
    data = fw.data.from_arrays(x, x @ RNG.standard_normal((10, 4)) > 0.5, name="tags")
    settings = {
        "data": data,
        "model": Tagger,
        "task": TAGS,
        "lr": 0.5,
        "rounds": 12,
        "steps": 20,
        "target": 0.7,
        "workers": 1,
    }
    result = fw.run(fw.Experiment("fedavg", **settings), tmp_path / "run")
    values = result.rounds["iou"]
    assert values[-1] > 0.75 > values[0]
    assert result.summary["rounds_to_target"] == 1 + np.argmax(values >= 0.7)
    with torch.no_grad():
        chosen = restored(Tagger(), result.x)(data.prepare(data.test_x))["logits"].numpy() > 0
    true = data.test_y > 0
    assert values[-1] == (chosen & true).sum() / (chosen | true).sum()
    assert result.rounds["exact"][-1] == pytest.approx((chosen == true).all(1).mean())
    assert result.to_pandas()["iou"].tolist() == values.tolist()
    assert fw.load_result(tmp_path / "run").summary["best"] == values.max()


class TwoInputs(nn.Module):
    """A picture and a few numbers, each with a layer of its own."""

    def __init__(self):
        super().__init__()
        self.picture, self.numbers = nn.Linear(16, 2), nn.Linear(3, 2)

    def forward(self, picture, numbers):
        return self.picture(picture.flatten(1)) + self.numbers(numbers)


def test_a_model_with_two_inputs_learns_from_both():
    picture, numbers = RNG.standard_normal((600, 1, 4, 4)), RNG.standard_normal((600, 3))
    y = (picture.sum((1, 2, 3)) / 4 + numbers.sum(1) / np.sqrt(3) > 0).astype(int)
    settings = {"model": TwoInputs, "lr": 0.5, "rounds": 10, "workers": 1}
    both = fw.data.from_arrays({"picture": picture, "numbers": numbers}, y)
    result = fw.run(fw.Experiment("fedavg", both, "dirichlet:0.5", **settings))
    assert result.summary["accuracy"] > 0.9
    half = fw.data.from_arrays({"picture": picture, "numbers": 0 * numbers}, y)
    assert fw.run(fw.Experiment("fedavg", half, "dirichlet:0.5", **settings)).summary["accuracy"] < 0.85
    assert (
        digest(fw.Experiment("fedavg", both, "dirichlet:0.5", **settings | {"workers": 2})) == result.summary["digest"]
    )


class Rows(nn.Module):
    """Reads a digit row by row."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 24, batch_first=True), nn.Linear(24, 10)

    def forward(self, x):
        out, _ = self.lstm(x[:, 0])
        return self.head(out[:, -1])


def test_an_lstm_reads_digits_row_by_row(digits):
    experiment = fw.Experiment("fedavg", digits, "iid", Rows, lr=0.5, steps=20, rounds=10, workers=1)
    result = fw.run(experiment)
    assert result.summary["accuracy"] > 0.7
    with torch.no_grad():
        answers = restored(Rows(), result.x)(digits.prepare(digits.test_x)).argmax(1).numpy()
    assert (answers == digits.test_y).mean() == result.summary["accuracy"]


def test_a_huggingface_data_set_trains_as_its_arrays_do(digits):
    datasets = pytest.importorskip("datasets")
    parts = [(digits.x[:300], digits.y[:300]), (digits.test_x, digits.test_y)]
    train, test = (
        datasets.Dataset.from_dict({"pixels": x, "label": y, "who": np.arange(len(y)) // 30}) for x, y in parts
    )
    pixels = datasets.Array3D((1, 8, 8), "uint8")
    train, test = (rows.cast_column("pixels", pixels).with_format("numpy") for rows in (train, test))
    data = fw.data.from_huggingface(train, "pixels", "label", group="who", test=test)
    arrays = fw.data.from_arrays(
        *parts[0], *parts[1], group=np.arange(300) // 30, test_group=np.arange(len(test)) // 30
    )
    result = fw.run(fw.Experiment("fedavg", data, rounds=10, workers=1))
    assert result.summary["accuracy"] > 0.6
    assert result.summary["digest"] == digest(fw.Experiment("fedavg", arrays, rounds=10, workers=1))
    assert len(result.manifest["labels"]) == 10, "a client for each writer"


class Stored(torch.utils.data.Dataset):
    """A map-style data set as people write them."""

    def __init__(self, x, y):
        self.x, self.targets = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]), int(self.targets[i])


def padded(items):
    """Collate by hand."""
    return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("collate", [None, padded])
def test_a_lazy_data_set_gives_the_bits_of_its_arrays(digits, workers, collate):
    """Also where small networks train in lockstep, and where they cannot."""
    x, test_x = (digits.prepare(part).numpy() for part in (digits.x, digits.test_x))
    arrays = fw.data.from_arrays(x, digits.y, test_x, digits.test_y)
    lazy = fw.data.from_torch(Stored(x, digits.y), Stored(test_x, digits.test_y), lazy=True, collate=collate)
    for model in ("logistic", "cnn_small"):
        settings = {"partition": "dirichlet:0.5", "model": model, "rounds": 2, "steps": 3}
        found = fw.run(fw.Experiment("fedavg", lazy, **settings, workers=workers))
        kept = fw.run(fw.Experiment("fedavg", arrays, **settings, workers=1))
        assert found.summary["digest"] == kept.summary["digest"]
        assert np.array_equal(found.rounds["accuracy"], kept.rounds["accuracy"])


def test_a_frame_of_houses_is_regressed_by_town():
    n = 800
    frame = pd.DataFrame(
        {"area": RNG.uniform(-1, 1, n), "rooms": RNG.integers(0, 3, n), "town": RNG.choice(list("abcdefgh"), n)}
    )
    frame["price"] = 3 * frame["area"] + frame["rooms"] - 2 + 0.1 * RNG.standard_normal(n)
    data = fw.data.from_frame(frame, target="price", group="town")
    result = fw.run(fw.Experiment("fedavg", data, lr=0.1, rounds=20, target=0.05, workers=1))
    assert len(set(result.clients["client"])) == 8
    assert (result.summary["metric"], result.summary["higher_is_better"]) == ("loss", False)
    assert result.summary["value"] < 0.02 < np.var(frame["price"])
    assert result.summary["rounds_to_target"] == 1 + np.argmax(result.rounds["loss"] <= 0.05)
    w, b = result.x[:2], result.x[2]
    assert result.rounds["mae"][-1] == pytest.approx(np.abs(data.test_x @ w + b - data.test_y).mean(), rel=1e-4)


def shifted(x, rng):
    """Add noise of one's own to bytes, and shift them."""
    noise = torch.randint(0, 3, x.shape, generator=rng, dtype=torch.uint8)
    return fw.data.RandomCrop(1)(x + noise, rng)


@pytest.mark.parametrize(
    "transform", [fw.data.RandomCrop(1), fw.data.RandomFlip(), shifted], ids=["crop", "flip", "own"]
)
def test_augmented_runs_resume_to_the_same_bits_and_do_not_depend_on_workers(digits, transform, tmp_path):
    data = replace(digits, transform=transform)
    settings = {"partition": "dirichlet:0.5", "model": "cnn_small", "rounds": 4, "steps": 3}
    experiment = fw.Experiment("fedavg", data, **settings, workers=1)
    whole = digest(experiment)
    assert whole != digest(replace(experiment, data=digits))
    assert whole == digest(replace(experiment, workers=2))
    interrupted(experiment, tmp_path / "run", after=2)
    assert fw.resume(tmp_path / "run", experiment).summary["digest"] == whole
    interrupted(experiment, tmp_path / "other", after=2)
    with pytest.raises(fw.BadInput, match=r"The data has changed since this run began: transform"):
        fw.resume(tmp_path / "other", replace(experiment, data=digits))
