"""What crosses between PyTorch and JAX, and what JAX is set up with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import polyak
from polyak import PolyakError, algorithms
from polyak.algorithms import common_jax
from polyak.algorithms.configs import CONFIGS
from tests.plumbing import running
from tests.plumbing.running import SMALL, polyak_cli, polyak_process

both_ways = pytest.mark.parametrize(("one", "other"), [("torch", "jax"), ("jax", "torch")])
every_algorithm = pytest.mark.parametrize("algorithm", CONFIGS)


@every_algorithm
@both_ways
def test_an_agent_of_one_backend_plays_in_the_other(
    algorithm: str, one: str, other: str, tmp_path: Path
) -> None:
    run = running.train(tmp_path, algorithm, backend=one, eval_interval=60, eval_episodes=2)
    agents = [polyak.load(run.path, backend=backend) for backend in (one, other)]
    spec = agents[0].spec
    obs = np.random.default_rng(0).normal(size=(50, *spec.obs_shape)).astype(np.float32)
    np.testing.assert_allclose(agents[0].act(obs), agents[1].act(obs), rtol=0, atol=1e-5)
    results = [
        polyak.evaluate(run.path, backend=backend, trust_env=True) for backend in (one, other)
    ]
    assert results[0].returns == pytest.approx(results[1].returns, abs=1e-3)
    assert results[0].seeds == results[1].seeds
    answer = polyak_cli("evaluate", run.path, "--backend", other, "--trust-env")
    assert answer.code == 0
    assert f"eval_return={results[1].mean:.2f}" in answer.out


@every_algorithm
@both_ways
def test_a_run_of_one_backend_goes_on_in_the_other(
    algorithm: str, one: str, other: str, tmp_path: Path
) -> None:
    whole = running.train(tmp_path / "whole", algorithm, backend=one)
    cut = running.stopped(tmp_path / "cut", 40, algorithm, backend=one)
    resumed = polyak.train(resume=cut, backend=other, trust_env=True)
    assert resumed.path == cut
    assert resumed.status["state"] == "finished"
    expected = load_file(whole.path / "final" / "model.safetensors")
    found = load_file(resumed.path / "final" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, weights in found.items():
        np.testing.assert_allclose(weights, expected[name], rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("missing", ["jax", "torch"])
def test_an_agent_plays_with_whatever_library_is_installed(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = running.train(tmp_path, backend=missing)
    monkeypatch.setattr(algorithms, "installed", lambda backend: backend != missing)
    other = "torch" if missing == "jax" else "jax"
    module = polyak.load(run.path)._module
    assert module is algorithms.load("ddpg", other)


@pytest.mark.parametrize("name", ["td3_continuous_action_jax", "td3 --backend jax"])
def test_a_cleanrl_name_means_the_backend(name: str, tmp_path: Path) -> None:
    given = running.flags(**SMALL, runs_dir=tmp_path)
    answer = polyak_cli("train", *name.split(), *given)
    assert answer.code == 0
    (run,) = tmp_path.iterdir()
    config = polyak.Run(run).config
    assert config["backend"] == "jax"
    assert config["exp_name"] == "td3_continuous_action_jax"
    assert run.name.startswith("tests.toys-toys-Twin-v0__td3_continuous_action_jax__1__")


def test_a_jax_run_of_several_environments_goes_on_bit_for_bit(tmp_path: Path) -> None:
    # Learning begins in the middle of a round, so that all programs are of four updates but one.
    options = {"backend": "jax", "num_envs": 4, "learning_starts": 21}
    whole = running.train(tmp_path / "whole", "td3", **options)
    cut = running.stopped(tmp_path / "cut", 8, "td3", **options)
    resumed = polyak.train(resume=cut, trust_env=True)
    assert running.weights(resumed) == running.weights(whole)


@every_algorithm
def test_a_jax_run_repeats_in_another_process(algorithm: str, tmp_path: Path) -> None:
    given = running.flags(**SMALL, backend="jax", runs_dir=tmp_path)
    for _ in range(2):
        assert polyak_process("train", algorithm, *given, cwd=tmp_path).code == 0
    one, other = (
        (path / "final" / "model.safetensors").read_bytes() for path in tmp_path.glob("tests*")
    )
    assert one == other


@pytest.mark.parametrize(
    ("variable", "within"), [("XDG_CACHE_HOME", "polyak/jax"), ("JAX_COMPILATION_CACHE_DIR", "")]
)
def test_a_jax_run_loads_no_torch_and_keeps_its_programs(
    variable: str, within: str, tmp_path: Path
) -> None:
    options = SMALL | {"backend": "jax", "runs_dir": str(tmp_path / "runs")}
    code = (
        "import os, sys, polyak\n"
        f"polyak.train('sac', **{options!r})\n"
        "import jax\n"
        "print('torch' in sys.modules, jax.config.jax_enable_x64)\n"
        "print(jax.config.jax_persistent_cache_min_compile_time_secs)\n"
        "print(os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'])"
    )
    strange = {"JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"}
    variables = {k: v for k, v in os.environ.items() if k not in strange}
    variables |= {variable: str(tmp_path / "cache"), "JAX_ENABLE_X64": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=variables
    )
    assert done.stdout.split() == ["False", "False", "0.0", "false"]
    assert list((tmp_path / "cache" / within).iterdir())


def test_a_gpu_that_jax_does_not_see_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(PolyakError, match="JAX sees no GPU; or use --device cpu"):
        common_jax.prepare("cuda", True, 1)
    card = tmp_path / "nvidia0"
    card.touch()
    monkeypatch.setattr(common_jax, "GPU", card)
    with pytest.raises(PolyakError, match=r"built for CPUs only: pip install 'jax\[cuda12\]'"):
        common_jax.prepare("cuda", True, 1)
    assert "there is a GPU that JAX cannot use" in common_jax.prepare("auto", True, 1).words
    assert "GPU" not in common_jax.prepare("cpu", True, 1).words
    monkeypatch.setattr(common_jax, "_platforms", lambda: ", and JAX_PLATFORMS is cpu")
    assert "GPU" not in common_jax.prepare("auto", True, 1).words
    with pytest.raises(PolyakError, match="JAX sees no GPU, and JAX_PLATFORMS is cpu; or use"):
        common_jax.prepare("cuda", True, 1)


@pytest.mark.parametrize("platforms", ["cuda", "nothing"])
def test_platforms_that_jax_does_not_have_are_one_line(platforms: str, tmp_path: Path) -> None:
    run = running.train(tmp_path, backend="jax")
    code = (
        "import sys; from polyak import cli\n"
        "for device in ('cpu', 'cuda', 'auto'):\n"
        f"    given = ['--device', device, *{running.flags(**SMALL, backend='jax')!r}]\n"
        "    print(cli.main(['train', 'td3', *given]))\n"
        f"print(cli.main(['evaluate', {str(run.path)!r}, '--trust-env']))"
    )
    variables = os.environ | {"JAX_PLATFORMS": platforms}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env=variables,
    )
    assert done.stdout.split() == ["2", "2", "2", "2"]
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    assert all(f"JAX_PLATFORMS is {platforms}" in line for line in lines)


def test_the_user_says_which_programs_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jax: Any = pytest.importorskip("jax")
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "7")  # read at the import
    try:
        for name, value in zip(names, (None, 7.0), strict=True):
            jax.config.update(name, value)
        common_jax.prepare("cpu", True, 1)
        assert getattr(jax.config, names[0]) == str(tmp_path / "polyak" / "jax")
        assert getattr(jax.config, names[1]) == 7.0
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_a_user_without_a_home_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    jax: Any = pytest.importorskip("jax")
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        assert common_jax.prepare("cpu", True, 1).words.startswith("device: cpu")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.parametrize("threads", [1, 2])
def test_jax_takes_no_more_threads_than_it_is_given(threads: int, tmp_path: Path) -> None:
    # XLA's pool is named after its purpose; Python and its libraries have threads of other names.
    options = SMALL | {"backend": "jax", "runs_dir": str(tmp_path), "threads": threads}
    code = (
        "import pathlib, polyak\n"
        f"polyak.train('td3', **{options!r})\n"
        "names = [p.read_text().strip() for p in pathlib.Path('/proc/self/task').glob('*/comm')]\n"
        "print(sum('XLAEigen' in name for name in names), names)"
    )
    variables = {k: v for k, v in os.environ.items() if k not in ("NPROC", "XLA_FLAGS")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=variables
    )
    assert int(done.stdout.split()[0]) == threads, done.stdout


def test_the_twin_s_state_has_the_same_snapshot() -> None:
    config: Any = CONFIGS["sac"](hidden_dim=4)
    found = []
    for backend in ("torch", "jax"):
        library = algorithms.load_backend(backend)
        device = library.prepare("cpu", True, 1).device
        module = algorithms.load("sac", backend)
        state = module.init(config, 3, 2, np.random.default_rng(0), device)
        found.append({k: (v.shape, v.dtype) for k, v in library.snapshot(state).items()})
    assert found[0] == found[1]
