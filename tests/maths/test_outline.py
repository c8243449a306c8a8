"""The outline of the files: the same names everywhere, imports that point one way."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from polyak import algorithms
from polyak.algorithms import ALGORITHMS

FOLDER = Path(algorithms.__file__).parent
SOURCE = FOLDER.parents[1]
PACKAGES = {
    ".".join(p.parent.relative_to(SOURCE).parts) for p in SOURCE.glob("polyak/**/__init__.py")
}
NAMES = [
    "Actor", "Critic", "State", "init", "act", "td_target", "critic_loss", "actor_loss",
    "critic_step", "actor_step", "update",
]  # fmt: skip
MODULES = sorted(path.name for path in FOLDER.glob("*.py"))
every_algorithm = pytest.mark.parametrize(
    ("algorithm", "backend"), ALGORITHMS, ids=["-".join(pair) for pair in ALGORITHMS]
)
Outline = dict[str, list[str]]


def outline(body: list[ast.stmt]) -> Outline:
    """Public classes and functions in their order, each function with its arguments."""
    found: Outline = {}
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            arguments = node.args.args if isinstance(node, ast.FunctionDef) else []
            found[node.name] = [a.arg for a in arguments if a.arg != "self"]
    return found


def outline_of(algorithm: str, backend: str) -> Outline:
    path = FOLDER / f"{algorithm}_{backend}.py"
    return outline(ast.parse(path.read_text("utf-8")).body)


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports would escape this test"
            module = node.module or ""
            # `from polyak import runs` imports a module too.
            deeper = {f"{module}.{name.name}" for name in node.names}
            found |= deeper if module in PACKAGES else {module}
    return found


@every_algorithm
def test_public_names_and_their_order(algorithm: str, backend: str) -> None:
    expected = NAMES.copy()
    if algorithm == "sac":
        expected.insert(expected.index("actor_loss") + 1, "alpha_loss")
    assert list(outline_of(algorithm, backend)) == expected


@every_algorithm
def test_arguments_are_those_of_the_interface_and_of_the_twin(algorithm: str, backend: str) -> None:
    found = outline_of(algorithm, backend)
    tree = ast.parse((FOLDER / "interface.py").read_text("utf-8"))
    (interface,) = (
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Algorithm"
    )
    for name, arguments in outline(interface.body).items():
        if name != "Actor":  # a class, of which the outline knows no arguments
            assert found[name] == arguments
    for other in (b for a, b in ALGORITHMS if a == algorithm):
        assert found == outline_of(algorithm, other)


def test_the_table_names_every_algorithm_file() -> None:
    files = {name for name in MODULES if name.endswith(("_torch.py", "_jax.py"))}
    table = {f"{algorithm}_{backend}.py" for algorithm, backend in ALGORITHMS}
    assert table == {name for name in files if not name.startswith("common_")}
    for (algorithm, backend), module in ALGORITHMS.items():
        assert module == f"polyak.algorithms.{algorithm}_{backend}"


@pytest.mark.parametrize("name", MODULES)
def test_algorithms_import_nothing_above_them(name: str) -> None:
    allowed = {*sys.stdlib_module_names, "numpy"}
    allowed |= {"torch"} if name.endswith("_torch.py") else set()
    allowed |= {"jax", "jaxlib", "optax"} if name.endswith("_jax.py") else set()
    for module in imports(FOLDER / name):
        if module.split(".")[0] == "polyak":
            assert module.startswith("polyak.algorithms.") or module == "polyak.errors"
            other = {"_torch.py": "_jax", "_jax.py": "_torch"}
            assert not any(name.endswith(k) and module.endswith(v) for k, v in other.items())
        else:
            assert module.split(".")[0] in allowed, f"{name} imports {module}"


@every_algorithm
def test_no_algorithm_imports_another(algorithm: str, backend: str) -> None:
    files = {module for pair, module in ALGORITHMS.items() if pair != (algorithm, backend)}
    assert not files & imports(FOLDER / f"{algorithm}_{backend}.py")


def test_imports_point_one_way() -> None:
    """Also those within functions. `polyak` itself, which offers names of others, is left out."""
    paths = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.glob("polyak/**/*.py")
    }
    del paths["polyak"]
    graph = {
        name: {m if m in paths else m.rpartition(".")[0] for m in imports(path)} & paths.keys()
        for name, path in paths.items()
    }
    assert graph["polyak.cli"] >= {"polyak.cli.train", "polyak.cli.parser", "polyak.errors"}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError and names the cycle


def loaded(code: str, folder: Path) -> set[str]:
    """Which libraries a new process has imported after this code."""
    # Stand-ins, so that an import is seen also where the library is not installed.
    for library in ("jax", "optax", "flax"):
        (folder / f"{library}.py").write_text("")
    watched = ("torch", "jax", "optax", "flax", "gymnasium", "mujoco", "optuna")
    end = f"\nimport sys; sys.stderr.write(' '.join(m for m in {watched} if m in sys.modules))"
    paths = f"import sys; sys.path.append({str(folder)!r})\n"
    result = subprocess.run(
        [sys.executable, "-c", paths + code + end], capture_output=True, text=True, check=True
    )
    return set(result.stderr.split())


def test_the_torch_side_never_imports_jax(tmp_path: Path) -> None:
    code = (
        "import polyak, polyak.training\n"
        "from polyak import algorithms\n"
        "algorithms.load_backend('torch')\n"
        "for algorithm, backend in algorithms.ALGORITHMS:\n"
        "    if backend == 'torch': algorithms.load(algorithm, backend)"
    )
    assert loaded(code, tmp_path) == {"torch", "gymnasium", "mujoco"}


def test_training_loads_no_library_before_a_backend_is_chosen(tmp_path: Path) -> None:
    assert loaded("import polyak.training", tmp_path) == {"gymnasium", "mujoco"}


def test_help_needs_no_heavy_library(tmp_path: Path) -> None:
    code = (
        "from polyak.cli import main\n"
        "for arguments in (['--help'], ['train', '--help'], ['train', 'sac', '--help'],\n"
        "    ['tune', '--help']):\n"
        "    try: main(arguments)\n"
        "    except SystemExit: pass"
    )
    assert loaded(code, tmp_path) == set()


def test_libraries_have_lower_bounds_and_no_pins() -> None:
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(word for extra in extras.values() for word in extra)]
    others = [word for word in needed if not word.startswith("polyak[")]
    assert others
    for word in others:
        assert re.fullmatch(r"[\w\[\]-]+>=[\d.]+(,<\d+)?( *;.*)?", word), word
