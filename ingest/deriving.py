"""Event rows -> derived tables with their audits: what may be written of them, and what is held back.

    deriving = Deriving(models, params)
    made = deriving.derive(events, groups)
    made.tables["weights"], made.violations        rows of sound groups; why the others are not

A group whose rows violate an audit is no reason to stop: its rows are left out and the violating ones are
told.  So is a group that cannot be derived at all (a number beyond what SQL counts with).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ingest.derived import OUTPUTS, VIOLATIONS, of_groups
from ingest.suspects import suspects
from lake.models import Models, Params
from lake.tables import DEAD_LETTERS, SCHEMAS

NOT_DERIVED = "not_derived"
"""In place of an audit's name: the models could not run on the group."""
OF_THE_ROWS = (duckdb.OutOfRangeException, duckdb.ConversionException, duckdb.InvalidInputException)
"""Errors of DuckDB that come of the values in rows, and come again."""


class ModelRunner:
    """Runs models over event rows, on one thread; one connection serves for all."""

    def __init__(self, models: Models, params: Params) -> None:
        self._models, self._params = models, params
        self._con = duckdb.connect()
        self._con.execute("set threads = 1")
        self._con.execute("set memory_limit = '2GB'")
        self._con.register("dead_letters", DEAD_LETTERS.empty_table())

    def run(self, events: Mapping[str, pa.Table], outputs: Sequence[str]) -> dict[str, pa.Table]:
        """The outputs over event rows (topic -> rows; a topic that is not given is empty)."""
        for topic, schema in SCHEMAS.items():
            self._con.register(f"event_{topic}", events.get(topic, schema.empty_table()))
        try:
            return self._models.derive(self._con, outputs, self._params)
        finally:
            for topic in SCHEMAS:
                self._con.unregister(f"event_{topic}")

    def close(self) -> None:
        self._con.close()


@dataclass(frozen=True)
class Derivation:
    """The tables of one derivation, of all groups, and the rows of `violations` of those that have any."""

    tables: dict[str, pa.Table]
    violations: pa.Table

    @property
    def violating(self) -> set[str]:
        return set(self.violations["group_id"].to_pylist())


class Deriving:
    """Derives groups and audits what came of it, on one thread."""

    def __init__(self, models: Models, params: Params) -> None:
        self._params = params
        self._runner = ModelRunner(models, params)

    def derive(
        self, events: Mapping[str, pa.Table], groups: Sequence[str], outputs: Sequence[str] = OUTPUTS
    ) -> Derivation:
        """The outputs (OUTPUTS are among them) of these groups, and what violates an audit.

        events  topic -> rows, of these groups alone
        """
        try:
            tables = self._runner.run(events, outputs)
            wrong = suspects(tables, events, self._params)
            found = VIOLATIONS.empty_table()
            if wrong:
                own = {topic: of_groups(rows, wrong) for topic, rows in events.items()}
                found = self._runner.run(own, ["violations"])["violations"].cast(VIOLATIONS)
        except OF_THE_ROWS as error:
            if len(groups) > 1:
                return self._apart(events, groups, outputs)
            none = self._runner.run({}, outputs)
            return Derivation(none, _not_derived(groups, str(error)))
        return Derivation(tables, found)

    def _apart(
        self, events: Mapping[str, pa.Table], groups: Sequence[str], outputs: Sequence[str]
    ) -> Derivation:
        """The same in two halves, as often as it takes to find the group that cannot be derived."""
        middle = len(groups) // 2
        halves = [
            self.derive({t: of_groups(rows, half) for t, rows in events.items()}, half, outputs)
            for half in (groups[:middle], groups[middle:])
        ]
        return Derivation(
            {name: pa.concat_tables([h.tables[name] for h in halves]).combine_chunks() for name in outputs},
            pa.concat_tables([h.violations for h in halves]),
        )

    def close(self) -> None:
        self._runner.close()


def _not_derived(groups: Sequence[str], why: str) -> pa.Table:
    row = msgspec.json.encode({"error": why}).decode()
    columns = {"group_id": groups, "audit": [NOT_DERIVED] * len(groups), "row": [row] * len(groups)}
    return pa.table(columns, VIOLATIONS)


def said(violations: pa.Table, group: str) -> str:
    """Why a group is held back, in a few words: `token_trained_twice (3 rows), ...`."""
    counts = pc.value_counts(of_groups(violations, [group])["audit"])
    return ", ".join(f"{c['values']} ({c['counts']} rows)" for c in counts.to_pylist())
