"""Fields that had another name, and what options say of themselves."""

import warnings
from dataclasses import replace
from typing import Annotated

import pytest

import fedweave as fw
from fedweave.core.options import Option, aliases_of, options_of, renamed_options
from fedweave.core.settings import BadInput, settings


@renamed_options
@settings
class Shelf:
    """Settings with two options and a field that is none."""

    books: Annotated[int, Option("How many books.", "N", "3", aliases=("tomes",))] = 10
    height: Annotated[float | None, Option("How high.", "CM", "20", default="as it is")] = None
    colour: str = "red"


def test_options_are_the_fields_that_declare_one_with_their_defaults_as_typed():
    found = options_of(Shelf)
    assert {name: option.default for name, option in found.items()} == {"books": "10", "height": "as it is"}
    assert aliases_of(found) == {"tomes": "books"}


def test_an_old_name_is_taken_and_read_with_a_warning_at_the_line_that_uses_it():
    with pytest.warns(DeprecationWarning, match=r"Shelf\(tomes=...\) is now called books;") as caught:
        shelf = Shelf(tomes=4)
    assert caught[0].filename == __file__
    assert shelf == Shelf(books=4)
    with pytest.warns(DeprecationWarning, match=r"Shelf.tomes is now called books;") as caught:
        assert shelf.tomes == 4
    assert caught[0].filename == __file__


def test_the_new_name_does_not_warn_and_the_old_one_can_replace_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert replace(Shelf(books=2), colour="blue").books == 2
    with pytest.warns(DeprecationWarning, match="books") as caught:
        assert replace(Shelf(books=1), tomes=2) == Shelf(books=2)
    assert caught[0].filename == __file__
    with (
        pytest.warns(DeprecationWarning, match="books"),
        pytest.raises(BadInput, match="'books' parameter of Shelf must be a whole"),
    ):
        Shelf(tomes="many")


def test_names_of_the_first_release_are_still_accepted():
    with pytest.warns(DeprecationWarning, match="max_length_ratio"):
        assert fw.Experiment("fedavg", longest=5).max_length_ratio == 5
    with pytest.warns(DeprecationWarning, match="min_answers"):
        assert fw.Experiment("fedavg", fewest=2).min_answers == 2
    with pytest.warns(DeprecationWarning, match="pool"):
        assert fw.Experiment("fedavg", engine="ray").pool == "ray"
    with pytest.warns(DeprecationWarning, match="fedavg_md"):
        assert fw.methods.fedmd(3) == fw.methods.fedavg_md(3)
    with pytest.warns(DeprecationWarning, match="fedavg_md") as caught:
        assert fw.Experiment("fedmd").method.name == "fedavg_md"
    assert caught[0].filename == __file__
