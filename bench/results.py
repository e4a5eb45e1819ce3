"""What was measured: figures by row and system, one a round, and what follows from them."""
import statistics
from typing import NamedTuple, Optional

from rows import PEERS, ROWS


class Figure(NamedTuple):
    value: float
    # Core-seconds a GiB, of everybody.
    cost: Optional[float] = None


class Results:
    def __init__(self):
        # By row, system and way: a system that can be had in several ways, as the raw store by several clients, counts
        # by the best of them.
        self.figures = {}
        # By row and system: why there is no figure.
        self.blanks = {}
        # By row and system: words beside the figure.
        self.notes = {}
        # Rows that were measured on less than their targets are for, and why.
        self.unjudged = {}

    def add(self, row, system, value, cost=None, way=""):
        ways = self.figures.setdefault(row, {}).setdefault(system, {})
        ways.setdefault(way, []).append(Figure(value, cost))

    def moved(self, row, system, moved, way=""):
        """A `Moved` of bench/processor.py."""
        self.add(row, system, moved.speed, moved.cost, way)

    def blank(self, row, system, reason):
        self.blanks.setdefault(row, {})[system] = reason

    def note(self, row, system, text):
        self.notes.setdefault(row, {})[system] = text

    def systems(self, row):
        return list(self.figures.get(row, {}))

    def best(self, row, system):
        """The best way's name and its figures, or None."""
        ways = self.figures.get(row, {}).get(system)
        if not ways:
            return None
        best = min if ROWS[row].less else max
        return best(ways.items(), key=lambda item: median(item[1]))

    def median(self, row, system):
        found = self.best(row, system)
        return median(found[1]) if found else None

    def cost(self, row, system):
        found = self.best(row, system)
        costs = [figure.cost for figure in found[1] if figure.cost is not None] if found else []
        return statistics.median(costs) if costs else None

    def spread(self, row, system):
        """From the least to the most, of the median."""
        found = self.best(row, system)
        values = [figure.value for figure in found[1]] if found else [0]
        middle = statistics.median(values)
        return (max(values) - min(values)) / middle if middle else 0.0

    def opponent(self, row):
        """The name of the system with which Tarn is compared, or None."""
        against = ROWS[row].against
        names = PEERS if against == "peers" else (against,) if against else ()
        there = [(self.median(row, name), name) for name in names if self.median(row, name) is not None]
        return (min if ROWS[row].less else max)(there)[1] if there else None

    def judged(self, row):
        """What the target is compared with, or None where it cannot be."""
        figure, opponent = self.median(row, "tarn"), self.opponent(row)
        if not ROWS[row].against or figure is None:
            return figure
        return figure / self.median(row, opponent) if opponent and self.median(row, opponent) else None

    def record(self):
        """All of it, for JSON."""
        rows = {}
        for name in ROWS:
            if name not in self.figures and name not in self.blanks:
                continue
            row, judged = ROWS[name], self.judged(name)
            judgeable = row.target is not None and judged is not None and name not in self.unjudged
            rows[name] = {
                "about": row.about, "unit": row.unit, "target": row.target, "less": row.less, "judged": judged,
                "against": self.opponent(name),
                "met": row.kept(judged, row.target) if judgeable else None,
                "unjudged": self.unjudged.get(name, ""),
                "systems": {system: self.one(name, system) for system in self.systems(name)},
                "blank": self.blanks.get(name, {}),
            }
        return rows

    def one(self, row, system):
        way, figures = self.best(row, system)
        return {
            "median": median(figures), "spread": self.spread(row, system), "cost": self.cost(row, system), "way": way,
            "rounds": [figure.value for figure in figures],
            "ways": {name: median(figures) for name, figures in self.figures[row][system].items()},
            "note": self.notes.get(row, {}).get(system, ""),
        }


def median(figures):
    return statistics.median(figure.value for figure in figures)
