"""What `speed.py` measured: rows, and the page of tables that is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

NAMES = {
    "ddpg": "DDPG", "td3": "TD3", "sac": "SAC",
    "torch": "PyTorch", "jax": "JAX", "sb3": "SB3", "sbx": "SBX",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Measurements of one quantity, one a round."""

    what: str
    unit: str
    values: Sequence[float]
    env_id: str = ""
    algorithm: str = ""
    system: str = ""
    num_envs: int = 1

    @property
    def median(self) -> float:
        """What counts."""
        return median(self.values)


class Rows(list[Row]):
    """All rows of a benchmark."""

    def find(self, what: str, **where: Any) -> Row | None:
        """The row of this quantity with these fields; None where that was not measured."""
        wanted = {"env_id": "", "algorithm": "", "system": "", "num_envs": 1} | where
        for row in self:
            if row.what == what and all(getattr(row, k) == v for k, v in wanted.items()):
                return row
        return None

    def median(self, what: str, **where: Any) -> float | None:
        """The median of that row."""
        row = self.find(what, **where)
        return row.median if row else None

    def ratio(self, what: str, one: dict[str, Any], other: dict[str, Any]) -> float | None:
        """The ratio of two medians of this quantity."""
        return quotient(self.median(what, **one), self.median(what, **other))

    def cells(self, what: str) -> list[tuple[str, str]]:
        """Tasks and algorithms of which this quantity was measured."""
        return list(dict.fromkeys((r.env_id, r.algorithm) for r in self if r.what == what))

    def asdict(self) -> list[dict[str, Any]]:
        """All of them, plain enough for JSON."""
        return [asdict(row) for row in self]


def quotient(one: float | None, other: float | None) -> float | None:
    """The ratio of two numbers, if there are two."""
    return None if one is None or other is None else one / other


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, numbers on the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(value: float | None, form: str = ".0f") -> str:
    """A number, or nothing where there is none."""
    return "" if value is None else format(value, form)


def loops(rows: Rows) -> str:
    """Environment steps per second of every system, and ratios to the peer of the same library."""
    head = ["task", "algorithm", "SB3", "SBX", "PyTorch", "JAX", "PyTorch / SB3", "JAX / SBX"]
    lines = []
    for env_id, algorithm in rows.cells("loop"):
        cell = {"env_id": env_id, "algorithm": algorithm}
        sps = {
            system: rows.median("loop", **cell, system=system)
            for system in ("sb3", "sbx", "torch", "jax")
        }
        ratios = (quotient(sps["torch"], sps["sb3"]), quotient(sps["jax"], sps["sbx"]))
        numbers = [shown(v) for v in sps.values()] + [shown(v, ".2f") for v in ratios]
        lines.append([env_id, NAMES[algorithm], *numbers])
    return table(head, lines)


def side_by_side(rows: Rows) -> str:
    """Environment steps per second with several environments and with one."""
    lines = []
    for row in rows:
        if row.what == "loop" and row.num_envs > 1:
            alone = rows.median(
                "loop", env_id=row.env_id, algorithm=row.algorithm, system=row.system
            )
            names = [row.env_id, NAMES[row.algorithm], NAMES[row.system], str(row.num_envs)]
            ratio = shown(quotient(row.median, alone), ".2f")
            lines.append([*names, shown(row.median), ratio])
    head = ["task", "algorithm", "system", "environments", "steps/s", "against one"]
    return table(head, lines)


def updates(rows: Rows) -> str:
    """Updates per second without environment, the limit, and our share of it."""
    head = ["task", "algorithm", "MFLOP", "GFLOP/s", "limit", "products alone"]
    for name in ("PyTorch", "JAX"):
        head += [name, "of limit", "loop / update"]
    lines = []
    for env_id, algorithm in rows.cells("update limit"):
        cell = {"env_id": env_id, "algorithm": algorithm}
        limit = rows.median("update limit", **cell)
        line = [
            env_id,
            NAMES[algorithm],
            shown(rows.median("work of an update", **cell)),
            shown(rows.median("best rate of products", **cell)),
            shown(limit),
            shown(rows.median("update limit of single products", **cell)),
        ]
        for system in ("torch", "jax"):
            alone = rows.median("update", **cell, system=system)
            loop = rows.median("loop", **cell, system=system)
            line += [shown(alone), shown(quotient(alone, limit), ".0%")]
            line.append(shown(quotient(loop, alone), ".0%"))
        lines.append(line)
    return table(head, lines)


def others(rows: Rows) -> str:
    """Everything that has no table of its own."""
    tabled = {
        "loop", "update", "update limit", "update limit of single products", "work of an update",
        "best rate of products",
    }  # fmt: skip
    lines = [
        [
            row.what, row.env_id, NAMES.get(row.algorithm, row.algorithm),
            NAMES.get(row.system, row.system), f"{row.median:.4g}", row.unit,
        ]
        for row in rows
        if row.what not in tabled and row.num_envs == 1
    ]  # fmt: skip
    return table(["", "task", "algorithm", "system", "median", "unit"], lines)


def circumstances(record: Mapping[str, Any]) -> str:
    """Where, when and with what a record was measured."""
    options, load = record["options"], record["load"]
    versions = {**record["versions"], **{f"peers' {k}": v for k, v in record["peers"].items()}}
    return (
        f"{record['processor']}, {record['cores']} cores, {options['threads']} threads for every "
        f"system; load {load['before']:.1f} before, {load['after']:.1f} after; "
        f"{options['rounds']} rounds of {options['steps']} steps; {record['minutes']} minutes.\n"
        f"Commit {record['git'].get('commit', '')[:10] or 'unknown'}, {record['started']}; "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}."
    )


def page(rows: Rows, record: Mapping[str, Any], targets: str, figure: str) -> str:
    """The whole page.

    Args:
        rows: what was measured.
        record: its circumstances, as the JSON file holds them.
        targets: the table of what was to be reached.
        figure: name of a picture beside the page, or empty.
    """
    sections = {
        "To reach": targets,
        "Environment steps per second": loops(rows),
        "Several environments": side_by_side(rows),
        "Updates per second": updates(rows),
        "Costs": others(rows),
    }
    parts = ["# Speed", circumstances(record)]
    if record["options"]["quick"]:
        parts.append("**A quick run, which only shows that all of it works.**")
    if figure:
        parts.append(f"![steps and updates per second beside the limit]({figure})")
    for title, text in sections.items():
        if text.count("\n") > 1:  # more than a head
            parts += [f"## {title}", text]
    return "\n\n".join(parts) + "\n"
