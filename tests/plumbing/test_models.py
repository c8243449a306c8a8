"""Saved agents: they act as they did, they run no code, and damage is one line."""

from __future__ import annotations

import copy
import json
import pickle
import resource
import shutil
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import safetensors.numpy
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st

import polyak
from polyak import algorithms, models, runs
from polyak.environments import Environment
from polyak.errors import PolyakError
from polyak.runs import Run
from tests import toys
from tests.plumbing.running import ALGORITHMS, TWIN, polyak_cli, train

WEIGHTS, INFO = "model.safetensors", "agent.json"


@pytest.fixture(scope="module")
def saved(trained: dict[str, Run]) -> dict[str, Path]:
    """Folder of the final agent of each algorithm. Never change it."""
    return {name: run.path / "final" for name, run in trained.items()}


@pytest.fixture
def agent(saved: dict[str, Path], tmp_path: Path) -> Path:
    """A TD3 agent to be damaged."""
    return Path(shutil.copytree(saved["td3"], tmp_path / "agent"))


def refused(path: Path) -> str:
    with pytest.raises(PolyakError) as error:
        polyak.load(path)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


def info(path: Path) -> Any:
    return json.loads((path / INFO).read_text("utf-8"))


def rewrite(path: Path, change: Callable[[Any], object]) -> None:
    """Changes an agent's description in place."""
    description = info(path)
    change(description)
    (path / INFO).write_text(json.dumps(description), "utf-8")


def reweigh(path: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Changes an agent's weights in place."""
    arrays = safetensors.numpy.load_file(path / WEIGHTS)
    change(arrays)
    safetensors.numpy.save_file(arrays, path / WEIGHTS)


# Round trip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_agent_acts_as_its_policy_did(saved: dict[str, Path], algorithm: str) -> None:
    """The weights in the file, put through the network by hand."""
    agent = polyak.load(saved[algorithm])
    obs = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    arrays = safetensors.numpy.load_file(saved[algorithm] / WEIGHTS)
    x = obs.astype(np.float64)
    for layer in range(3):
        x = x @ arrays[f"actor.{layer}.weight"].T + arrays[f"actor.{layer}.bias"]
        x = np.maximum(x, 0.0) if layer < 2 else x
    np.testing.assert_allclose(agent.act(obs), np.tanh(x[:, :2]), atol=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_description_says_what_the_weights_mean(
    trained: dict[str, Run], saved: dict[str, Path], algorithm: str
) -> None:
    description, config = info(saved[algorithm]), trained[algorithm].config
    assert description["algorithm"] == algorithm
    assert description["backend"] == "torch"
    assert description["env_id"] == TWIN
    assert description["seed"] == config["seed"]
    assert description["step"] == 60
    assert (description["obs_shape"], description["action_shape"]) == ([4], [2])
    assert (description["action_low"], description["action_high"]) == ([-1, -1], [1, 1])
    assert description["action_dtype"] == "float32"
    assert description["config"].items() <= config.items()
    assert set(description["results"]) == {"evaluation", "final", "exploring"}
    critics = 1 if algorithm == "ddpg" else 2
    outputs = 4 if algorithm == "sac" else 2
    shapes = {
        name: array.shape
        for name, array in safetensors.numpy.load_file(saved[algorithm] / WEIGHTS).items()
    }
    assert shapes == {
        "actor.0.weight": (8, 4),
        "actor.0.bias": (8,),
        "actor.1.weight": (8, 8),
        "actor.1.bias": (8,),
        "actor.2.weight": (outputs, 8),
        "actor.2.bias": (outputs,),
        "critic.0.weight": (critics, 8, 6),
        "critic.0.bias": (critics, 8),
        "critic.1.weight": (critics, 8, 8),
        "critic.1.bias": (critics, 8),
        "critic.2.weight": (critics, 1, 8),
        "critic.2.bias": (critics, 1),
    }


def test_saving_over_an_agent_leaves_no_traces(tmp_path: Path) -> None:
    first, second = (
        train(tmp_path / "runs", seed=seed, save_path=tmp_path / "kept") for seed in (1, 2)
    )
    assert info(tmp_path / "kept")["seed"] == 2
    kept, final = tmp_path / "kept" / WEIGHTS, second.path / "final" / WEIGHTS
    assert kept.read_bytes() == final.read_bytes()
    assert kept.read_bytes() != (first.path / "final" / WEIGHTS).read_bytes()
    assert {file.name for file in (tmp_path / "kept").iterdir()} == {WEIGHTS, INFO}


# Acting


def shaped_agent(folder: Path, obs: Box, action: Box, algorithm: str = "td3") -> polyak.Agent:
    """An agent of an environment with these spaces."""
    name = f"toys/Shaped{len(gymnasium.registry)}-v0"

    def build(**kwargs: Any) -> toys.Toy:
        task = toys.Spaces(**kwargs)
        task.observation_space, task.action_space = obs, action
        return task

    gymnasium.register(name, entry_point=build)
    run = train(folder, algorithm, env_id=name, total_timesteps=22)
    return polyak.load(run.path)


MATRIX = Box(np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 7, np.float32))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_single_and_batched_observations(tmp_path: Path, algorithm: str) -> None:
    agent = shaped_agent(tmp_path, Box(-9, 9, (3, 2)), MATRIX, algorithm)
    obs = np.random.default_rng(0).uniform(-9, 9, (5, 3, 2))
    batch = agent.act(obs)
    assert batch.shape == (5, 2, 3)
    for one, action in zip(obs, batch, strict=True):
        assert agent.act(one).shape == (2, 3)
        np.testing.assert_allclose(agent.act(one), action, rtol=1e-5)
    assert agent.act(obs[:1]).shape == (1, 2, 3)
    assert agent.act(obs[:0]).shape == (0, 2, 3)


def test_an_observation_without_axes(tmp_path: Path) -> None:
    agent = shaped_agent(tmp_path, Box(-9, 9, ()), Box(-1, 1, ()))
    assert agent.act(np.array(1.0)).shape == ()
    assert agent.act(np.ones(5)).shape == (5,)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_actions_are_in_the_box_in_its_dtype(tmp_path: Path, dtype: Any) -> None:
    low, high = np.array([-1.0, 0.1, -3.0], dtype), np.array([1.0, 5.3, -2.0], dtype)
    box = Box(low, high, dtype=dtype)
    agent = shaped_agent(tmp_path, Box(-9, 9, (3,)), box)
    # Observations so large that the policy saturates, in both directions.
    obs = (
        np.random.default_rng(0).standard_normal((300, 3)) * 10.0 ** np.arange(-2, 4)[:, None, None]
    )
    for action in agent.act(obs.reshape(-1, 3).astype(np.float32)):
        assert action.dtype == dtype
        assert action in box


@pytest.mark.parametrize(
    "obs",
    [np.zeros(3), np.zeros(5), np.zeros((4, 1)), np.zeros((2, 2, 4)), np.zeros((4, 3)), 0.0, []],
)
def test_an_observation_of_another_shape_is_refused(saved: dict[str, Path], obs: Any) -> None:
    agent = polyak.load(saved["ddpg"])
    with pytest.raises(ValueError, match=r"shape \(.*\(4,\)"):
        agent.act(obs)


def test_lists_and_integers_are_observations_too(saved: dict[str, Path]) -> None:
    agent = polyak.load(saved["ddpg"])
    expected = agent.act(np.array([1, 2, 3, 4], np.float32))
    observations: list[Any] = [[1, 2, 3, 4], np.array([1, 2, 3, 4]), np.array([1.0, 2, 3, 4])]
    for obs in observations:
        np.testing.assert_array_equal(agent.act(obs), expected)


def test_noise_is_that_of_the_generator(saved: dict[str, Path]) -> None:
    agent = polyak.load(saved["td3"])
    obs = np.ones(4, np.float32)
    quiet = agent.policy()
    noisy = [agent.policy(np.random.default_rng(seed)) for seed in (0, 0, 1)]
    played = [[policy(obs).tolist() for _ in range(3)] for policy in (quiet, *noisy)]
    assert played[0][0] == played[0][1]
    assert played[1] == played[2]
    assert played[1] != played[3]
    assert played[1][0] != played[1][1] != played[0][1]


# Finding


def test_a_run_stands_for_its_final_agent_else_its_best(
    trained: dict[str, Run], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained["ddpg"].path, tmp_path / "run"))
    assert models.find(run) == run / "final"
    assert models.find(run / "best") == run / "best"
    shutil.rmtree(run / "final")
    assert models.find(run) == run / "best"
    shutil.rmtree(run / "best")
    assert "no saved agent in" in refused(run)


def test_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file", tmp_path / "file" / "below"):
        message = refused(path)
        assert str(path) in message
        assert "agent.json" in message


def test_an_agent_without_weights(agent: Path) -> None:
    (agent / WEIGHTS).unlink()
    assert WEIGHTS in refused(agent)


def test_an_agent_of_another_environment_is_refused(saved: dict[str, Path]) -> None:
    agent = polyak.load(saved["ddpg"])
    for env_id in ("toys/One-v0", toys.register("Twin", scale=2.0)):
        with pytest.raises(PolyakError, match="but the agent was trained with"):
            models.check_fits(agent, Environment(env_id).spec)
    models.check_fits(agent, Environment("toys/Twin-v0").spec)


# Damage


@pytest.mark.parametrize("name", [WEIGHTS, INFO])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_files_cut_short(agent: Path, name: str, share: float) -> None:
    data = (agent / name).read_bytes()
    (agent / name).write_bytes(data[: int(share * len(data))])
    assert name in refused(agent)


@pytest.mark.parametrize("header", [0, 2**24, 2**40, 2**63, 2**64 - 1])
def test_an_absurd_header_allocates_nothing(agent: Path, header: int) -> None:
    data = (agent / WEIGHTS).read_bytes()
    (agent / WEIGHTS).write_bytes(header.to_bytes(8, "little") + data[8:])
    tracemalloc.start()
    try:
        assert WEIGHTS in refused(agent)
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", [WEIGHTS, INFO])
@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_a_pickle_is_not_unpickled(agent: Path, tmp_path: Path, name: str, protocol: int) -> None:
    trap = tmp_path / "sprung"
    data = pickle.dumps(Trap(trap), protocol)
    (agent / name).write_bytes(data)
    assert name in refused(agent)
    assert not trap.exists()
    pickle.loads(data)
    assert trap.exists()  # it would have sprung


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "3",
        '"agent"',
        "{",
        "{}",
        '{"format": 1}',
        "\x00" * 100,
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"format": ' + "9" * 5000 + "}",
        "\ufeff{}",
    ],
    ids=lambda text: repr(text[:12]) + str(len(text)),
)
def test_descriptions_that_are_none(agent: Path, text: str) -> None:
    (agent / INFO).write_text(text, "utf-8")
    assert INFO in refused(agent)


def test_a_description_in_another_encoding(agent: Path) -> None:
    (agent / INFO).write_bytes(b'{"format": "\xff\xfe"}')
    assert INFO in refused(agent)


DAMAGE: dict[str, Callable[[Any], object]] = {
    "format": lambda d: d.update(format=2),
    "format text": lambda d: d.update(format="1"),
    "no format": lambda d: d.pop("format"),
    "algorithm": lambda d: d.update(algorithm="ppo"),
    "algorithm list": lambda d: d.update(algorithm=["td3"]),
    "backend": lambda d: d.update(backend="os"),
    "other algorithm": lambda d: d.update(algorithm="sac"),  # whose actor has more outputs
    "hidden_dim huge": lambda d: d["config"].update(hidden_dim=10**9),
    "hidden_dim text": lambda d: d["config"].update(hidden_dim="8"),
    "hidden_dim list": lambda d: d["config"].update(hidden_dim=[8]),
    "hidden_dim 0": lambda d: d["config"].update(hidden_dim=0),
    "hidden_dim negative": lambda d: d["config"].update(hidden_dim=-8),
    "noise text": lambda d: d["config"].update(exploration_noise="loud"),
    "noise nothing": lambda d: d["config"].update(exploration_noise=None),
    "config unknown": lambda d: d["config"].update(layers=3),
    "config list": lambda d: d.update(config=[1, 2]),
    "config missing": lambda d: d.pop("config"),
    "obs_shape huge": lambda d: d.update(obs_shape=[10**12]),
    "obs_shape absurd": lambda d: d.update(obs_shape=[10**3000, 10**3000]),
    "obs_shape infinite": lambda d: d.update(obs_shape=[float("inf")]),
    "obs_shape number": lambda d: d.update(obs_shape=4),
    "obs_shape negative": lambda d: d.update(obs_shape=[-4]),
    "obs_shape two negative": lambda d: d.update(obs_shape=[-2, -2]),
    "obs_shape fraction": lambda d: d.update(obs_shape=[4.7]),
    "obs_shape text": lambda d: d.update(obs_shape="4"),
    "obs_shape missing": lambda d: d.pop("obs_shape"),
    "action_shape huge": lambda d: d.update(action_shape=[10**12]),
    "action_shape deep": lambda d: d.update(action_shape=[[2]]),
    "action_dtype": lambda d: d.update(action_dtype="float33"),
    "action_dtype object": lambda d: d.update(action_dtype="object"),
    "action_dtype text": lambda d: d.update(action_dtype="U5"),
    "action_dtype integer": lambda d: d.update(action_dtype="int8"),
    "action_dtype time": lambda d: d.update(action_dtype="M8[s]"),
    "action_low short": lambda d: d.update(action_low=[-1]),
    "action_low text": lambda d: d.update(action_low=["a", "b"]),
    "action_low nan": lambda d: d.update(action_low=[float("nan"), -1]),
    "action_low infinite": lambda d: d.update(action_low=[-float("inf"), -1]),
    "action_low above": lambda d: d.update(action_low=[2, -1]),
    "env_id number": lambda d: d.update(env_id=7),
    "seed text": lambda d: d.update(seed="one"),
    "seed missing": lambda d: d.pop("seed"),
    "results missing": lambda d: d.pop("results"),
    "results list": lambda d: d.update(results=[]),
    "results empty evaluation": lambda d: d.update(results={"evaluation": {}}),
    "results seeds text": lambda d: d["results"]["evaluation"].update(seeds=["one"]),
    "results seeds number": lambda d: d["results"]["evaluation"].update(seeds=3),
    "results seeds negative": lambda d: d["results"]["evaluation"].update(seeds=[-1]),
    "results seeds infinite": lambda d: d["results"]["evaluation"].update(seeds=[float("inf")]),
}


SLIGHT = ("seed", "results", "obs_shape text")
"""What playing may do without."""


@pytest.mark.parametrize("what", DAMAGE)
def test_descriptions_that_do_not_hold_are_refused_before_anything_is_played(
    agent: Path, what: str
) -> None:
    rewrite(agent, DAMAGE[what])
    tracemalloc.start()
    try:
        # The episodes of the last evaluation, and more than it had.
        answers = [polyak_cli("evaluate", agent, "--trust-env", *more) for more in
                   ([], ["--episodes", 4])]  # fmt: skip
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    for answer in answers:
        if answer.code != 0 or not what.startswith(SLIGHT):
            assert answer.line
            assert not answer.out


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda w: w.pop("actor.1.bias"), "actor.1.bias"),
        (lambda w: w.update({"actor.1.bias": w["actor.1.bias"][:-1]}), "actor.1.bias"),
        (lambda w: w.update({"actor.0.weight": w["actor.0.weight"].T.copy()}), "actor.0.weight"),
        (
            lambda w: w.update({"actor.2.bias": w["actor.2.bias"].astype(np.float16)}),
            "actor.2.bias",
        ),
        (lambda w: w.update({"actor.2.bias": w["actor.2.bias"].view(np.int32)}), "actor.2.bias"),
        (lambda w: w["actor.0.weight"].__setitem__((3, 1), np.nan), "actor.0.weight"),
        (lambda w: w["actor.2.bias"].__setitem__(0, -np.inf), "actor.2.bias"),
        (lambda w: [w.update({k[6:]: w.pop(k)}) for k in list(w)], "actor."),
    ],
    ids=["missing", "short", "transposed", "half", "integer", "nan", "inf", "renamed"],
)
def test_weights_that_do_not_fit_are_named(agent: Path, change: Any, named: str) -> None:
    reweigh(agent, change)
    assert named in refused(agent)


def test_weights_of_another_agent_are_refused(agent: Path, saved: dict[str, Path]) -> None:
    shutil.copy(saved["sac"] / WEIGHTS, agent)
    assert "actor.2" in refused(agent)


# Code


def test_a_module_in_the_environment_id_is_not_imported_unasked(
    agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "sprung"
    (tmp_path / "trap_module.py").write_text(f"import pathlib; pathlib.Path({str(trap)!r}).touch()")
    monkeypatch.syspath_prepend(str(tmp_path))
    rewrite(agent, lambda d: d.update(env_id="trap_module:Hopper-v5"))
    loaded = polyak.load(agent)  # what acts needs no environment
    assert loaded.act(np.zeros(4, np.float32)).shape == (2,)
    for command in (
        ["evaluate", agent],
        ["enjoy", agent, "--record-path", tmp_path / "a.gif"],
        ["train", "td3", "--skip-train", "--load-path", agent],
    ):
        answer = polyak_cli(*command)
        assert "'trap_module'" in answer.line
        assert "--trust-env" in answer.line
    with pytest.raises(PolyakError, match="trap_module"):
        polyak.evaluate(agent)
    assert not trap.exists()
    assert "trap_module" not in sys.modules
    polyak_cli("evaluate", agent, "--trust-env")
    assert trap.exists()  # it would have sprung


@pytest.mark.parametrize("command", [["enjoy"], ["train", "td3", "--skip-train", "--load-path"]])
def test_the_way_out_that_a_refusal_names_exists(
    saved: dict[str, Path], tmp_path: Path, command: list[str]
) -> None:
    path = tmp_path / "a.gif"
    answer = polyak_cli(*command, saved["td3"], "--trust-env", "--record-path", path)
    assert answer.code == 0, answer.err
    assert path.exists()


@pytest.mark.parametrize("env_id", ["os:system", "../../x", "a/b/c/d", "", "Hopper-v5\n", "💥"])
def test_ids_that_are_none_are_one_line(agent: Path, env_id: str) -> None:
    rewrite(agent, lambda d: d.update(env_id=env_id))
    assert polyak_cli("evaluate", agent).line


def test_arguments_of_an_environment_cannot_be_smuggled_in(agent: Path) -> None:
    rewrite(agent, lambda d: d.update(env_kwargs={"xml_file": "/etc/passwd"}, xml_file="x"))
    assert polyak_cli("evaluate", agent, "--trust-env", "--episodes", 1).code == 0


# Any bytes at all

MOST_MEMORY = 50e6
"""Bytes that loading a file of some kilobytes may take at most."""


def exercise(path: Path) -> None:
    """Loads, acts, and chooses seeds; nothing but a PolyakError may come of it."""
    try:
        agent = polyak.load(path)
        models.seeds(agent, None, None)
        models.seeds(agent, 3, None)
        models.trusted_env_id(agent, trust=False)
    except PolyakError as refusal:
        message = str(refusal)
    else:
        message = ""
    assert "\n" not in message
    if message:
        return
    action = agent.act(np.zeros((2, *agent.spec.obs_shape), np.float32))
    assert action.shape == (2, *agent.spec.action_shape)
    assert action.dtype == agent.spec.action_dtype
    assert (action >= agent.spec.action_low.reshape(agent.spec.action_shape)).all()
    assert (action <= agent.spec.action_high.reshape(agent.spec.action_shape)).all()


@st.composite
def edits(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A few changes of a file's bytes: flipped bits, removed, doubled or invented pieces."""
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["flip", "cut", "copy", "put"]),
                st.floats(0, 1),
                st.integers(0, 7),
                st.integers(1, 40),
                st.one_of(
                    st.binary(max_size=12),
                    st.sampled_from(
                        [b"1e999", b"-1", b"null", b"NaN", b"[", b'"', b"{}", b"9" * 50]
                    ),
                ),
            ),
            min_size=1,
            max_size=4,
        )
    )

    def edit(data: bytes) -> bytes:
        changed = bytearray(data)
        for kind, where, bit, length, new in steps:
            at = int(where * max(len(changed) - 1, 0))
            if kind == "flip" and changed:
                changed[at] ^= 1 << bit
            elif kind == "cut":
                del changed[at : at + length]
            elif kind == "copy":
                changed[at:at] = changed[at : at + length]
            elif kind == "put":
                changed[at : at + len(new)] = new
        return bytes(changed)

    return edit


@pytest.fixture(scope="module")
def victim(saved: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(saved["td3"], tmp_path_factory.mktemp("victim") / "agent"))


@pytest.mark.parametrize("name", [WEIGHTS, INFO])
@settings(max_examples=150)
@given(edit=edits())
def test_any_damage_to_a_file_is_noticed_or_harmless(
    victim: Path, saved: dict[str, Path], name: str, edit: Callable[[bytes], bytes]
) -> None:
    (victim / name).write_bytes(edit((saved["td3"] / name).read_bytes()))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # weights of 1e38 may overflow
            exercise(victim)
    finally:
        shutil.copy(saved["td3"] / name, victim / name)


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**40), 10**40),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from([0, -1, 1, 2**31, 2**63, 10**400, "float64", "object", "ddpg", "jax"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, by the keys that lead there."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value[:2])
    return [path] * bool(path) + [p for k, v in items for p in places(v, (*path, k))]


@settings(max_examples=200)
@given(data=st.data())
def test_any_description_is_understood_or_refused(
    victim: Path, saved: dict[str, Path], data: st.DataObject
) -> None:
    description = copy.deepcopy(info(saved["td3"]))
    known = [p for p in places(description) if p[0] not in ("versions", "exp_name")]
    *keys, last = data.draw(st.sampled_from(known))
    holder: Any = description
    for key in keys:
        holder = holder[key]
    holder[last] = data.draw(JSON)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (victim / INFO).write_text(json.dumps(description), "utf-8")
    try:
        exercise(victim)
    finally:
        shutil.copy(saved["td3"] / INFO, victim / INFO)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert 1024 * (after - before) < MOST_MEMORY


def test_the_saved_agent_of_these_tests_is_sound(saved: dict[str, Path]) -> None:
    """Or the tests above would pass on anything."""
    for path in saved.values():
        assert polyak.load(path).info["format"] == models.FORMAT
        assert polyak_cli("evaluate", path, "--trust-env", "--episodes", 1).code == 0
    assert (("td3", "torch") in algorithms.ALGORITHMS) and runs.read_json(saved["td3"] / INFO)
