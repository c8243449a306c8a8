"""`polyak report`: reads runs and writes everything that a report is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from polyak.errors import PolyakError
from polyak.report.collect import collect

NEEDED = {"matplotlib", "scipy"}
"""Libraries of the extra `report`."""


class Written(NamedTuple):
    """The files to look at first; the others lie beside them."""

    curve: Path
    page: Path
    tables: Path
    summary: str
    """How many runs count."""


def write(paths: Sequence[Path], output: Path) -> Written:
    """Reports on some runs.

    Args:
        paths: run folders, or folders of them.
        output: the folder to write, made if need be. Files of an earlier report are replaced.

    Raises:
        PolyakError: no runs, a damaged run, matplotlib or SciPy absent, or a file cannot be
            written.
    """
    try:
        from polyak.report import curves, figures, formats, page, tables
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in NEEDED:
            raise
        raise PolyakError(f"a report needs {error.name}: pip install 'polyak[report]'") from error
    groups = collect(paths)
    drawn = {
        "learning_curve": figures.learning_curves(groups, curves.STEPS),
        "learning_curve_time": figures.learning_curves(groups, curves.TIME),
        "performance_profile": figures.profiles(groups),
        "sample_efficiency": figures.efficiency(groups),
    }
    everything = tables.all_tables(groups)
    found = [table for table in everything if table.rows]
    summary = page.summary(groups)
    if hidden := figures.unseen(groups):
        summary += (
            f" The pictures of learning curves leave out {hidden} of the tasks; the page has them."
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, figure in drawn.items():
            figures.save(figure, output / name)
        for table in everything:
            (output / f"{table.name}.csv").unlink(missing_ok=True)  # of an earlier report
        for table in found:
            _write(output / f"{table.name}.csv", formats.comma_separated(table))
        sections = "\n".join(formats.markdown(table) for table in found)
        _write(output / "report.md", f"# Polyak report\n\n{summary}\n\n{sections}")
        pictures = {
            "Performance profile": output / "performance_profile.svg",
            "Sample efficiency": output / "sample_efficiency.svg",
        }
        _write(output / "report.html", page.render(groups, found, pictures))
    except OSError as error:
        raise PolyakError(f"cannot write {output}: {error.strerror}") from error
    return Written(
        output / "learning_curve.png", output / "report.html", output / "report.md", summary
    )


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8", newline="\n")
