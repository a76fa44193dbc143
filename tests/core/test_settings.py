"""Settings are checked once, when built, and every complaint is the one sentence that names the way out."""

import dataclasses
from typing import Annotated, Literal

import pytest
from pydantic import Field, PositiveInt

from fedweave.core.settings import BadInput, choice, nearest, settings


@settings
class Kettle:
    """Something with one parameter of each kind."""

    litres: Annotated[float, Field(gt=0, le=3)]
    cups: PositiveInt = 4
    heat: PositiveInt | Literal["auto"] = "auto"
    span: tuple[int, int] = (1, 2)

    def __post_init__(self):
        if self.cups > 10 * self.litres:
            raise ValueError(f"{self.cups} cups do not fit into {self.litres} litres.")


@settings
class Picky:
    """Something whose own check finds two problems."""

    size: int = 0

    def __post_init__(self):
        raise BadInput("First this.", "Then that.")


def problems(make, *args, **kwargs):
    with pytest.raises(BadInput) as caught:
        make(*args, **kwargs)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"litres": "much"}, "The 'litres' parameter of Kettle must be a valid number. Got 'much' instead."),
        ({"litres": 0}, "The 'litres' parameter of Kettle must be greater than 0. Got 0 instead."),
        ({"litres": 9}, "The 'litres' parameter of Kettle must be less than or equal to 3. Got 9 instead."),
        ({"litres": float("inf")}, "The 'litres' parameter of Kettle must be a finite number. Got inf instead."),
        ({"litres": float("nan")}, "The 'litres' parameter of Kettle must be a finite number. Got nan instead."),
        ({"litres": None}, "The 'litres' parameter of Kettle must be a valid number. Got None instead."),
        ({"litres": 1, "cups": 2.5}, "The 'cups' parameter of Kettle must be a whole number"),
        ({"litres": 1, "heat": 0}, "The 'heat' parameter of Kettle must be greater than 0 or 'auto'. Got 0 instead."),
        (
            {"litres": 1, "heat": "lots"},
            "The 'heat' parameter of Kettle must be a whole number or 'auto'. Got 'lots' instead.",
        ),
        ({"litres": 1, "span": (1, "b")}, "The 'span.1' parameter of Kettle must be a whole number. Got 'b' instead."),
        (
            {"litres": 1, "cups": 1e300},
            "The 'cups' parameter of Kettle must be a smaller whole number. Got 1e+300 instead.",
        ),
        (
            {"litres": 1, "cps": 2},
            "Kettle has no parameter 'cps'. Did you mean 'cups'? Valid: litres, cups, heat, span.",
        ),
        ({"litres": 1, "zzz": 2}, "Kettle has no parameter 'zzz'. Valid: litres, cups, heat, span."),
        ({}, "The 'litres' parameter of Kettle is required."),
        ({"litres": 1, "cups": 11}, "11 cups do not fit into 1.0 litres."),
    ],
    ids=str,
)
def test_one_sentence_per_mistake(given, sentence):
    (only,) = problems(Kettle, **given)
    assert only.startswith(sentence)


def test_positional_arguments_are_named_too():
    assert problems(Kettle, "x") == ["The 'litres' parameter of Kettle must be a valid number. Got 'x' instead."]
    (only,) = problems(Kettle, 1, 2, 3, (1, 2), 5)
    assert only == "Kettle takes 4 parameters (litres, cups, heat, span). Got 5 beyond them."


def test_all_mistakes_are_told_at_once():
    found = problems(Kettle, litres="x", cups=0, heat="y", colour="red")
    for name, problem in zip(("litres", "cups", "heat", "colour"), found, strict=True):
        assert repr(name) in problem


def test_several_problems_of_an_own_check_stay_several():
    assert problems(Picky) == ["First this.", "Then that."]


def test_good_values_are_kept_and_text_becomes_numbers():
    kettle = Kettle("1.5", cups="3", heat="2", span=["1", 2])
    assert (kettle.litres, kettle.cups, kettle.heat, kettle.span) == (1.5, 3, 2, (1, 2))
    assert kettle == Kettle(litres=1.5, cups=3, heat=2, span=(1, 2))


def test_settings_are_frozen():
    kettle = Kettle(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        kettle.cups = 5
    assert kettle.cups == 4


def test_replacing_a_value_checks_it():
    assert dataclasses.replace(Kettle(1), cups=5).cups == 5
    assert "'cups'" in problems(dataclasses.replace, Kettle(1), cups=-1)[0]


def test_the_nearest_name_is_offered_only_when_near():
    assert nearest("dirichle", ["iid", "dirichlet"]) == " Did you mean 'dirichlet'?"
    assert nearest("fedasc", ["fedasync", "fedacs"]) == " Did you mean 'fedacs'?"
    assert nearest("qqq", ["iid", "dirichlet"]) == ""
    assert choice("soup", "tomat", ["tomato", "leek"]) == (
        "There is no soup 'tomat'. Did you mean 'tomato'? Valid: tomato, leek."
    )
