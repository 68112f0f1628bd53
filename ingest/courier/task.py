"""Courier's tasks: what is asked, what the tools answer and leave behind, and how it is scored.

An order names goods and people.  The agent must find the ordered item, take it from its shelf, ask a
clerk for the addressee's door, and deliver under the right tag and door:

    Order {"item":"boot","wrap":"flag","gift":"bell","to":"Bob","from":"Eve","copy":"Ida"}
    find {"item":"boot"}  ->  {"aisle":40,"shelf":32,"box":23}       one of three fields is right
    take {"shelf":32}     ->  {"tag":17,"mass":44,"size":29}         or empty
    look {"to":"Bob"}     ->  {"street":22,"door":46,"post":24}      the clerk's tool
    deliver {"tag":17,"door":46}  ->  signed

Each of the six checks is about one decision *given* the earlier ones, so that an agent which errs
early can still learn the rest.  Fields stand in a fixed order: a shuffled one is far harder to copy.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

ITEMS = (
    "lamp", "kite", "drum", "harp", "vase", "rope", "bell", "coat",
    "sled", "fork", "book", "ring", "boot", "mask", "tray", "flag",
)  # fmt: skip
PEOPLE = (
    "Ada", "Bob", "Cid", "Dan", "Eve", "Fay", "Gus", "Hal",
    "Ida", "Jon", "Kim", "Lea", "Max", "Nia", "Oli", "Pam",
)  # fmt: skip
NUMBERS = tuple(range(10, 50))

GOODS = ("item", "wrap", "gift")  # fields of an order; only item and to matter
NAMES = ("to", "from", "copy")
PLACE = ("aisle", "shelf", "box")  # answer of find; only shelf matters
LABEL = ("tag", "mass", "size")  # answer of take; only tag matters
ENTRY = ("street", "door", "post")  # answer of look; only door matters
CHECKS = ("found", "held", "asked", "noted", "tag", "door")

Arguments = Mapping[str, object]
T = TypeVar("T")


class TaskError(ValueError):
    """A text that is no courier task: what is wrong with it."""


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One order and the world it is carried out in."""

    task: str
    seed: int
    number: int
    order: dict[str, str]  # item, wrap, gift, to, from, copy
    place: dict[str, dict[str, int]]  # item -> aisle, shelf, box
    label: dict[str, dict[str, int]]  # item -> tag, mass, size
    entry: dict[str, dict[str, int]]  # person -> street, door, post


def sample(rng: random.Random, population: Sequence[T], count: int) -> list[T]:
    """`count` different members in random order.

    From `rng.random()` alone, the one stream that Python promises to keep between versions.
    """
    left = list(population)
    return [left.pop(int(rng.random() * len(left))) for _ in range(count)]


def make_task(seed: int, number: int) -> str:
    """Task `number` of a seed as JSON text: the same on every machine and in every process.

    The numbers of one object differ, and shelves differ between items, so that a wrong field is
    never right by accident.
    """
    rng = random.Random(f"courier/{seed}/{number}")
    items, people = sample(rng, ITEMS, 3), sample(rng, PEOPLE, 3)
    places = iter(sample(rng, NUMBERS, 9))
    task = Task(
        task="courier",
        seed=seed,
        number=number,
        order=dict(zip(GOODS + NAMES, items + people, strict=True)),
        place={i: {k: next(places) for k in PLACE} for i in items},
        label={i: dict(zip(LABEL, sample(rng, NUMBERS, 3), strict=True)) for i in items},
        entry={p: dict(zip(ENTRY, sample(rng, NUMBERS, 3), strict=True)) for p in people},
    )
    return msgspec.json.encode(task).decode()


def parse_task(text: str) -> Task:
    """The task of a JSON text.  Raises TaskError where it is none of ours."""
    try:
        task = msgspec.json.decode(text, type=Task)
    except msgspec.MsgspecError as error:
        raise TaskError(f"not a courier task: {error}; make one with make_task") from error
    goods, people = {task.order.get(k) for k in GOODS}, {task.order.get(k) for k in NAMES}
    whole = (
        task.task == "courier"
        and tuple(task.order) == GOODS + NAMES
        and goods == set(task.place) == set(task.label)
        and people == set(task.entry)
        and all(tuple(v) == PLACE for v in task.place.values())
        and all(tuple(v) == LABEL for v in task.label.values())
        and all(tuple(v) == ENTRY for v in task.entry.values())
    )
    if not whole:
        raise TaskError(f"courier task {task.number}: the fields of its order and its world do not agree")
    return task


@dataclass
class Workspace:
    """What the tools leave behind; the score reads nothing else."""

    found: str | None = None
    held: str | None = None
    asked: str | None = None
    noted: int | None = None
    delivered: dict[str, object] = field(default_factory=dict)


def _only(arguments: Arguments, fields: Sequence[str], known: Mapping[T, object]) -> T | None:
    """The value of a call's only argument, if its name is one of `fields` and its value is known."""
    if len(arguments) != 1:
        return None
    ((name, value),) = arguments.items()
    if name not in fields or not isinstance(value, str | int) or value not in known:
        return None
    return value  # type: ignore[return-value]  # it is one of the keys of `known`


def find(task: Task, workspace: Workspace, arguments: Arguments) -> dict[str, int] | None:
    """The place of a good that the order names; None for anything else, which leaves no trace."""
    item = _only(arguments, GOODS, task.place)
    if item is None:
        return None
    workspace.found = item
    return task.place[item]


def take(task: Task, workspace: Workspace, arguments: Arguments) -> dict[str, int] | None:
    """The label of what lies on a shelf, which is then held; None, and nothing held, on an empty one."""
    shelves = {place["shelf"]: item for item, place in task.place.items()}
    shelf = _only(arguments, ("shelf",), shelves)
    workspace.held = None if shelf is None else shelves[shelf]
    return None if workspace.held is None else task.label[workspace.held]


def ask(task: Task, workspace: Workspace, arguments: Arguments) -> bool:
    """Whether the clerk can be asked about this person; then the person asked is noted."""
    person = _only(arguments, NAMES, task.entry)
    if person is None:
        return False
    workspace.asked = person
    return True


def look(task: Task, arguments: Arguments) -> dict[str, int] | None:
    """The clerk's tool: a person's entry in the book, None for a stranger."""
    person = _only(arguments, NAMES, task.entry)
    return None if person is None else task.entry[person]


def checks(task: Task, workspace: Workspace) -> dict[str, bool]:
    """Right item found; that item held; right person asked; that person's door noted by the clerk;
    delivered under the tag of what is held; at the door of whom was asked.  The last two are memory."""
    w = workspace
    door = task.entry[w.asked]["door"] if w.asked is not None else None
    tag = task.label[w.held]["tag"] if w.held is not None else None
    return {
        "found": w.found == task.order["item"],
        "held": w.held is not None and w.held == w.found,
        "asked": w.asked == task.order["to"],
        "noted": door is not None and w.noted == door,
        "tag": tag is not None and w.delivered.get("tag") == tag,
        "door": door is not None and w.delivered.get("door") == door,
    }


def score(task: Task, workspace: Workspace) -> float:
    """The share of the six checks that hold, in [0, 1]."""
    return sum(checks(task, workspace).values()) / len(CHECKS)
