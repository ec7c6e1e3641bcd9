"""Where errors say that an attribute of an algorithm is set."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from relaax_like.config.places import describe_assignment, describe_attribute, describe_function

LINES = Path(__file__).read_text().splitlines()


class Base:
    phases: tuple[str, ...] = ()

    def __init__(self) -> None:
        """Of the framework."""


class InBody(Base):
    phases = ("in the body",)


class InInit(Base):
    def __init__(self) -> None:  # in __init__
        super().__init__()
        self.phases = ("own",)


class Inherited(InInit):
    pass


class Both(Base):
    phases = ("default",)

    def __init__(self) -> None:  # replaces the default
        super().__init__()
        self.phases = ("own",)


class Bare(Base):
    pass


class Later(Base):
    pass


def make_later() -> Later:
    later = Later()
    later.phases = ("set by its maker",)
    return later


@pytest.mark.parametrize(
    ("instance", "line"),
    [
        (InBody(), "in the body"),
        (InInit(), "# in __init__"),
        (Inherited(), "# in __init__"),
        (Both(), "# replaces the default"),
        (Bare(), "phases: tuple"),
        (make_later(), "class Later"),
    ],
)
def test_the_place_of_an_attribute_is_the_line_that_sets_it(instance: Base, line: str) -> None:
    file, number = describe_attribute(instance, "phases").rsplit(":", 1)
    assert Path(file).name == "test_places.py"
    assert line in LINES[int(number) - 1]


def test_an_attribute_that_a_base_class_sets_is_set_at_the_end_of_the_constructor() -> None:
    assert describe_assignment(InBody(), "phases", 1) == "set phases = 1 in class InBody"
    want = "set self.phases = 1 at the end of __init__ of class InInit"
    assert describe_assignment(InInit(), "phases", 1) == want


@pytest.mark.parametrize(
    ("function", "line"), [(make_later, "def make_later"), (InInit, "class InInit")]
)
def test_the_place_of_a_function_or_class_is_its_line(
    function: Callable[..., object], line: str
) -> None:
    file, number = describe_function(function).rsplit(":", 1)
    assert Path(file).name == "test_places.py"
    assert line in LINES[int(number) - 1]


def test_another_object_that_can_be_called_is_shown() -> None:
    assert "partial" in describe_function(functools.partial(make_later))
