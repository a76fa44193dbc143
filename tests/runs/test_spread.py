"""Runs at the same time: their order, what is shared when some have ended, and what is given back without room."""

import threading

import pytest

from fedweave.engine.pool.ray import NoRoom, RayActors, divide
from fedweave.runs.spread import spread


class Crew(RayActors):
    """Actors that nobody needs."""

    joined = True

    def lanes(self, most):
        self.found = [Crew(n) for n in divide(self.count, min(most, self.count))]
        return self.found


def test_actors_are_divided_evenly_and_none_goes_without():
    for total in range(1, 20):
        for lanes in range(1, 25):
            shares = divide(total, lanes)
            assert sum(shares) == max(total, lanes)
            assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(("at_once", "lanes"), [(None, 3), (2, 2), (1, 0), (9, 3)])
def test_results_are_in_the_order_of_the_runs(at_once, lanes):
    crew, names = Crew(3), [str(n) for n in range(7)]
    crew.found = []
    assert spread(lambda name, pool: name + "!", names, crew, at_once) == [name + "!" for name in names]
    assert len(crew.found) == lanes


def test_the_last_run_gets_all_actors():
    crew, others = Crew(5), threading.Semaphore(0)

    def work(name, pool):
        if name != "long":
            return pool.count
        while pool.count < 5:  # as long as others are at it
            others.acquire(timeout=0.01)
        return pool.count

    assert spread(work, ["long", "a", "b", "c"], crew, None)[0] == 5


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_run_without_room_is_given_to_others_or_tried_again(first):
    tried, gone = [], threading.Event()

    def work(name, pool):
        tried.append(name)
        if name != first:
            assert gone.wait(60)
        gone.set()
        if tried.count("b") == 1 and name == "b":
            raise NoRoom("no room")
        return name + "!"

    assert spread(work, ["a", "b"], Crew(2), None) == ["a!", "b!"]
    assert sorted(tried) == ["a", "b", "b"]


def test_nobody_waits_for_ever_for_room():
    def work(name, pool):
        raise NoRoom("no room")

    with pytest.raises(NoRoom):
        spread(work, ["a", "b"], Crew(2), None)
