"""Environments as agents see them: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from polyak import environments, stopping
from polyak.environments import Environment, Environments, Episode, scale_action, seeds_for
from polyak.errors import PolyakError
from tests import toys
from tests.plumbing.running import polyak_process

pytestmark = pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")


def refused(env_id: str) -> str:
    """The message about an environment that cannot be used."""
    with pytest.raises(PolyakError) as error:
        Environment(env_id)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


# Observations


@pytest.mark.parametrize("kind", toys.USABLE)
def test_observations_are_flat_float32_whatever_the_task_has(kind: str) -> None:
    raw_env = gymnasium.make(toys.spaces_id(kind), disable_env_checker=True)
    raw, _ = raw_env.reset(seed=7)
    env = Environment(toys.spaces_id(kind))
    obs = env.reset(seed=7)
    for _ in range(3):
        assert obs.dtype == np.float32
        assert obs.shape == (env.spec.obs_dim,) == (np.size(raw),)
        np.testing.assert_array_equal(obs, np.ravel(raw))  # in C order
        action = np.zeros(env.spec.action_dim, np.float32)
        obs, *_ = env.step(action)
        raw, *_ = raw_env.step(scale_action(action, env.spec))


class Reusing(toys.Counter):
    """Returns one buffer again and again, as some environments do."""

    buffer = np.zeros(2, np.float32)

    def first(self) -> np.ndarray:
        self.buffer[:] = super().first()
        return self.buffer


gymnasium.register("toys/Reusing-v0", entry_point=Reusing)


def test_an_observation_of_one_environment_survives_its_next_step() -> None:
    env = Environment("toys/Reusing-v0")
    first = env.reset()
    second, *_ = env.step(np.zeros(1, np.float32))
    third, *_ = env.step(np.zeros(1, np.float32))
    assert [obs[1] for obs in (first, second, third)] == [0, 1, 2]


def test_an_observation_of_several_survives_their_next_step() -> None:
    envs = Environments("toys/Reusing-v0", [0])
    first = envs.reset()
    second = envs.step(np.zeros((1, 1), np.float32))
    third = envs.step(np.zeros((1, 1), np.float32))
    assert [obs[0, 1] for obs in (first, second.obs, second.next_obs, third.obs)] == [0, 1, 1, 2]


# Actions


def sent(actions: Any, **kwargs: Any) -> list[list[float]]:
    """What arrives in a `One` environment, for some actions in [-1, 1]."""
    log: list[np.ndarray] = []
    env = Environment(toys.register("One", log=log.append, **kwargs))
    for action in actions:
        env.reset()
        env.step(np.asarray(action, np.float32))
    return [action.tolist() for action in log]


def test_each_dimension_has_its_own_scale_and_bias() -> None:
    asked = [[-1, -1, -1], [1, 1, 1], [0, 0, 0], [-1, 0.5, 1], [1, -0.5, 0], [0.5, -1, -0.5]]
    assert sent(asked, low=(-1, 0, -3), high=(1, 5, -2)) == [
        [-1, 0, -3],
        [1, 5, -2],
        [0, 2.5, -2.5],
        [-1, 3.75, -2],
        [1, 1.25, -2.5],
        [0.5, 0, -2.75],
    ]


def test_actions_beyond_the_unit_cube_are_cut_off() -> None:
    assert sent([[-7, 7, 1.01]]) == [[-1, 5, -2]]


@pytest.mark.parametrize("kind", toys.USABLE)
def test_every_usable_space_gets_actions_that_its_box_contains(kind: str) -> None:
    env = Environment(toys.spaces_id(kind))  # which refuses anything else
    generator = np.random.default_rng(0)
    for _ in range(3):
        env.reset(seed=0)
        for _ in range(5):
            env.step(generator.uniform(-1, 1, env.spec.action_dim).astype(np.float32))
        for end in (-1, 1):
            env.reset()
            env.step(np.full(env.spec.action_dim, end, np.float32))


class Boxed(toys.Toy):
    """An environment with the action box that a test has put in `box`."""

    box: Box = Box(-1.0, 1.0)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(Box(-np.inf, np.inf, (1,)), self.box, **kwargs)
        self.last = np.zeros(0)

    def first(self) -> np.ndarray:
        return np.zeros(1, np.float32)

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        self.last = np.copy(action)
        return self.first(), 0.0, False, False


gymnasium.register("toys/Boxed-v0", entry_point=Boxed)


def boxed(box: Box) -> tuple[Environment, Boxed]:
    Boxed.box = box
    env = Environment("toys/Boxed-v0")
    env.reset()
    task = env.unwrapped
    assert isinstance(task, Boxed)
    return env, task


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    """Bounded float boxes: wide, narrow down to two neighbouring numbers, of any shape and dtype.

    Narrow boxes are where rounding shows: between neighbours there is nothing to round to.
    """
    dtype: Any = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    width = np.dtype(dtype).itemsize * 8
    largest = 60000.0 if width == 16 else float(np.float32(1e29))
    shape = draw(st.sampled_from([(1,), (3,), (2, 3), ()]))
    numbers = st.floats(-largest, largest, width=width)
    one: np.ndarray = draw(arrays(dtype, shape, elements=numbers))
    if draw(st.booleans()):
        other = one
        for _ in range(draw(st.integers(1, 3))):
            other = np.nextafter(other, np.asarray(np.inf, dtype))
    else:
        other = draw(arrays(dtype, shape, elements=numbers))
    low, high = np.minimum(one, other), np.maximum(one, other)
    high = np.where(low == high, np.nextafter(high, np.asarray(np.inf, dtype)), high)
    return Box(low.astype(dtype), high.astype(dtype), shape, dtype)


@settings(max_examples=300)
@given(
    box=boxes(),
    unit=st.one_of(
        st.lists(st.floats(-1.0, 1.0, width=32), min_size=6, max_size=6),
        st.lists(st.floats(-1.0, 1.0), min_size=6, max_size=6),  # a policy of the user's own
    ),
)
def test_every_action_is_in_the_box_in_its_own_dtype(box: Box, unit: list[float]) -> None:
    env, task = boxed(box)
    size = env.spec.action_dim
    last = []
    for action in (np.array(unit[:size]), np.full(size, -1.0), np.full(size, 1.0)):
        env.step(action)  # `Toy` refuses what its box does not contain
        assert task.last.dtype == box.dtype
        last.append(task.last)
    np.testing.assert_array_equal(last[1], box.low)  # both extremes are reached
    np.testing.assert_array_equal(last[2], box.high)


def test_rounding_does_not_step_over_a_bound() -> None:
    # Between 0.1 and the next number, low (1 - t) + high t falls below 0.1 for many t.
    low = np.array([0.1])
    box = Box(low, np.nextafter(low, 1.0), dtype=np.float64)
    t = np.linspace(0, 1, 1001)
    assert (box.low * (1 - t) + box.high * t < box.low).any()
    env, task = boxed(box)
    for unit in 2 * t - 1:
        env.step(np.array([unit]))
        assert task.last in box


@settings(max_examples=100)
@given(box=boxes(), unit=st.tuples(st.floats(-1.0, 1.0, width=32), st.floats(-1.0, 1.0, width=32)))
def test_a_larger_action_never_becomes_a_smaller_one(box: Box, unit: tuple[float, float]) -> None:
    env, task = boxed(box)
    sent = []
    for value in sorted(unit):
        env.step(np.full(env.spec.action_dim, value, np.float32))
        sent.append(task.last)
    # In a box of neighbours the last bit may go either way.
    slack = 2 * np.spacing(np.maximum(np.abs(box.low), np.abs(box.high)))
    assert (sent[0] <= sent[1] + slack).all()


def test_matrix_actions_keep_their_places() -> None:
    low = np.arange(6, dtype=np.float32).reshape(2, 3)
    env, task = boxed(Box(low, low + 0.5, dtype=np.float32))
    assert env.spec.action_shape == (2, 3)
    assert env.spec.action_dim == 6
    env.step(np.array([-1, -1, -1, 1, 0, -1], np.float32))
    np.testing.assert_array_equal(task.last, [[0.0, 1.0, 2.0], [3.5, 4.25, 5.0]])


# Ends of episodes


class Staggered(toys.Counter):
    """`Counter` whose episodes last 1 + seed % 4 steps, so that environments end apart."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.length = 1 + seed % 4
        return super().reset(seed=seed, options=options)


gymnasium.register("toys/Staggered-v0", entry_point=Staggered, kwargs={"apart": True})


def test_many_environments_are_not_built_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    monkeypatch.setattr(environments, "Environment", built.append)
    monkeypatch.setattr(stopping, "asked", lambda: len(built) == 3)
    with pytest.raises(KeyboardInterrupt):
        Environments("toys/Twin-v0", range(9))
    assert len(built) == 3


@pytest.mark.parametrize("seeds", [[2], [1], [0], [1, 2, 3], [2, 6, 10], [0, 4, 3]])
def test_last_observations_and_episode_rows_are_exact(seeds: list[int]) -> None:
    envs = Environments("toys/Staggered-v0", seeds)
    n = len(seeds)
    length = [1 + seed % 4 for seed in seeds]
    episode = [toys.Counter.start(seed) for seed in seeds]
    t = [0] * n
    obs = envs.reset()
    for round_ in range(30):
        np.testing.assert_array_equal(obs, np.stack([episode, t], axis=1))
        taken = envs.step(np.zeros((n, 1), np.float32))
        rows = []
        for i in range(n):
            t[i] += 1
            assert taken.next_obs[i].tolist() == [episode[i], t[i]]
            assert taken.reward[i] == t[i] - 1
            assert not taken.terminated[i]
            assert taken.truncated[i] == (t[i] == length[i])
            if t[i] == length[i]:
                # Of several environments that end together each has a step of its own.
                rows.append(Episode(round_ * n + i + 1, sum(range(length[i])), length[i]))
                episode[i] += 1
                t[i] = 0
        assert taken.episodes == rows
        obs = taken.obs
    assert envs.steps == 30 * n


@pytest.mark.parametrize(
    ("toy", "terminated", "truncated"),
    [("Const", False, True), ("ConstTerm", True, False), ("Both", True, True)],
)
def test_termination_and_truncation_are_told_apart(
    toy: str, terminated: bool, truncated: bool
) -> None:
    envs = Environments(toys.register(toy, length=3), [0, 1])
    envs.reset()
    for step in range(1, 10):
        taken = envs.step(np.zeros((2, 1), np.float32))
        end = step % 3 == 0
        assert taken.terminated.tolist() == [end and terminated] * 2
        assert taken.truncated.tolist() == [end and truncated] * 2
        assert [row.length for row in taken.episodes] == [3, 3] * end


def test_returns_are_summed_in_double_precision() -> None:
    # In float32, 2^24 + 1 = 2^24: the four rewards of 1 after the large one would be lost.
    env_id = toys.register("Poison", k=1, field="reward", value=2.0**24, length=5)
    envs = Environments(env_id, [0])
    envs.reset()
    rows = [row for _ in range(5) for row in envs.step(np.zeros((1, 1), np.float32)).episodes]
    assert rows == [Episode(5, 2.0**24 + 4, 5)]


# Seeds


def play(seeds: list[int], steps: int = 45) -> np.ndarray:
    envs = Environments("toys/Twin-v0", seeds)
    seen = [envs.reset()]
    for _ in range(steps):
        seen.append(envs.step(np.full((len(seeds), 2), 0.1, np.float32)).obs)
    return np.stack(seen)


def test_the_same_seeds_give_the_same_episodes_and_others_give_others() -> None:
    first = play([3, 4])
    np.testing.assert_array_equal(first, play([3, 4]))
    np.testing.assert_array_equal(first[:, 1], play([4])[:, 0])
    # 20 steps an episode: three different beginnings in each environment, also in the second one.
    starts = first[[0, 20, 40]].reshape(6, 4)
    assert len({tuple(start) for start in starts.tolist()}) == 6


def test_a_seed_restarts_everything_random() -> None:
    env = Environment("Pendulum-v1")
    starts = [(env.reset(5).tolist(), env.env.action_space.sample().tolist()) for _ in range(2)]
    assert starts[0] == starts[1]
    assert env.reset().tolist() != starts[0][0]


def test_streams_of_seeds_do_not_overlap() -> None:
    streams = (
        environments.TRAINING,
        environments.EVALUATION,
        environments.FINAL,
        environments.PLAY,
    )
    found = [s for seed in range(20) for stream in streams for s in seeds_for(seed, stream, 30)]
    assert len(set(found)) == 20 * 4 * 30
    assert all(0 <= seed < 2**31 for seed in found)
    assert seeds_for(7, 0, 3) == seeds_for(7, 0, 5)[:3]  # more environments, the same first ones
    assert seeds_for(2**70, 0, 2) != seeds_for(2**70 + 1, 0, 2)


# What is refused

REASONS = {
    "DiscreteAction": r"action space Discrete\(4\).* need a Box.*Pendulum-v1",
    "DictAction": r"action space Dict\(.* need a Box",
    "TupleAction": r"action space Tuple\(.* need a Box",
    "MultiDiscreteAction": r"action space MultiDiscrete\(.* need a Box",
    "IntegerAction": r"integer actions Box\(.*needs a float Box",
    "EmptyAction": r"empty action space Box\(",
    "DiscreteObs": r"observes Discrete\(4\).*FlattenObservation",
    "DictObs": r"observes Dict\(.*FlattenObservation",
    "EmptyObs": r"observes nothing: Box\(",
    "Infinite": r"\[-inf, inf\] in dimension 0, which is unbounded.*finite",
    "HalfInfinite": r"\[0\.0, inf\] in dimension 1, which is unbounded.*finite",
    "Sentinel": r"e\+38\] in dimension 0, which is unbounded.*finite",
    "ZeroWidth": r"\[2\.0, 2\.0\] in dimension 1, which leaves no choice",
}


@pytest.mark.parametrize("kind", toys.REFUSED)
def test_spaces_that_cannot_be_used_are_refused_in_one_line_with_the_way_out(kind: str) -> None:
    message = refused(toys.spaces_id(kind))
    assert message.startswith(toys.spaces_id(kind))
    assert re.search(REASONS[kind], message)
    # Gymnasium's RescaleAction refuses unbounded boxes itself: it is no way out.
    assert "RescaleAction" not in message


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bound", ["inf", "max"])
def test_a_sentinel_for_unbounded_is_noticed_in_every_dtype(dtype: Any, bound: str) -> None:
    # float16's largest number, 65504, may well be meant.
    if (dtype, bound) == (np.float16, "max"):
        return
    high = np.inf if bound == "inf" else np.finfo(dtype).max
    Boxed.box = Box(np.array([0.0], dtype), np.array([high], dtype), dtype=dtype)
    assert "in dimension 0, which is unbounded" in refused("toys/Boxed-v0")


@pytest.mark.parametrize(
    ("asked", "suggested"),
    [
        ("Hoper-v5", "Hopper-v5"),
        ("hopper-v5", "Hopper-v5"),
        ("HalfCheeta-v4", "HalfCheetah-v4"),
        ("Invertedpendulum-v5", "InvertedPendulum-v5"),
        ("Pendulum-v0", "Pendulum-v1"),
        ("polyak/Pusher-v6", "polyak/Pusher-v5"),
        ("Hopper", "Hopper-v5"),
        ("Humanoid", "Humanoid-v5"),
        ("Hopper-v9", "Hopper-v5"),
        ("Hopper-v2", "Hopper-v5"),
        ("Humanoid-v3", "Humanoid-v5"),
        ("Pusher-v4", "polyak/Pusher-v4"),
        ("Pusher-v2", "polyak/Pusher-v5"),
        ("Pusher", "polyak/Pusher-v5"),
        ("polyak/Pusher", "polyak/Pusher-v5"),
    ],
)
def test_ids_that_are_not_there_get_suggestions_that_work(asked: str, suggested: str) -> None:
    message = refused(asked)
    offered = re.findall(r"[\w/]+-v\d+", message.rpartition("; ")[2])
    assert suggested in offered
    for env_id in offered:
        Environment(env_id).close()


def test_an_id_without_neighbours_asks_for_its_package() -> None:
    assert refused("Xyzzy/Plugh-v0") == "no environment 'Xyzzy/Plugh-v0'; is its package installed?"
    assert "environment '' has no name" in refused("")


# `module:Env-v0`

MODULE = """
import gymnasium
from tests.toys import Const
gymnasium.register("Mine-v0", entry_point=Const)
def fail(**kwargs):
    raise ValueError("first line\\nsecond line")
gymnasium.register("Fails-v0", entry_point=fail)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "mine_registers": MODULE,
        "mine_raises": "raise RuntimeError('no licence\\nfound')",
        "mine_exits": "raise SystemExit('no licence')",
        "mine_needs": "import a_library_that_is_missing",
        "mine_typo": "def (:",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    for env_id in ("Mine-v0", "Fails-v0"):
        gymnasium.registry.pop(env_id, None)


def test_a_module_registers_its_environment(modules: None) -> None:
    env = Environment("mine_registers:Mine-v0")
    assert env.reset(seed=0).tolist() == [1.0]
    assert env.spec.env_id == "mine_registers:Mine-v0"  # so that a saved agent finds it again


@pytest.mark.parametrize(
    ("env_id", "reason"),
    [
        ("mine_is_not_there:Mine-v0", "'mine_is_not_there'.*cannot be imported.*installed"),
        ("mine_raises:Mine-v0", r"'mine_raises'.*cannot be imported.*RuntimeError: no licence"),
        ("mine_exits:Mine-v0", r"'mine_exits'.*cannot be imported.*SystemExit: no licence"),
        ("mine_needs:Mine-v0", "'mine_needs'.*cannot be imported.*a_library_that_is_missing"),
        ("mine_typo:Mine-v0", "'mine_typo'.*cannot be imported.*SyntaxError"),
        ("mine_registers:Other-v0", "no environment 'mine_registers:Other-v0'"),
        ("mine_registers:Fails-v0", "cannot be built: ValueError: first line"),
        (".:Mine-v0", "cannot be imported"),
        ("a b:c:Mine-v0", "cannot be imported"),
    ],
)
def test_what_is_wrong_with_a_module_is_said_in_one_line(
    modules: None, env_id: str, reason: str
) -> None:
    assert re.search(reason, refused(env_id))


# Numbers that are not finite


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("seeds", [[5], [5, 6, 7]])
@pytest.mark.parametrize(("field", "name"), [("reward", "reward"), ("obs", r"observation\[2\]")])
def test_poison_is_named_by_step_environment_and_field(
    field: str, name: str, seeds: list[int], value: str
) -> None:
    index = len(seeds) - 1
    env_id = toys.register("Poison", k=7, field=field, value=value, seed=seeds[index])
    envs = Environments(env_id, seeds)
    envs.reset()
    action = np.zeros((len(seeds), 1), np.float32)
    for _ in range(6):
        envs.step(action)
    step = 6 * len(seeds) + index + 1
    with pytest.raises(
        PolyakError, match=f"^{name} is {value} at step {step} in environment {index}: "
    ):
        envs.step(action)


def test_poison_in_a_first_observation_is_named() -> None:
    envs = Environments(toys.register("Poison", k=0, field="reset", seed=6), [5, 6])
    with pytest.raises(PolyakError, match=r"^observation\[2\] is nan at step 0 in environment 1: "):
        envs.reset()
    envs = Environments(toys.register("Poison", k=3, field="reset", seed=6, length=5), [5, 6])
    envs.reset()
    for _ in range(4):
        envs.step(np.zeros((2, 1), np.float32))
    # The first reset after step 3 is that after step 5 of each environment.
    with pytest.raises(PolyakError, match=r"^observation\[2\] is nan at step 10 in environment 1"):
        envs.step(np.zeros((2, 1), np.float32))


def test_an_action_that_is_not_finite_is_named_before_the_task_sees_it() -> None:
    seen: list[np.ndarray] = []
    envs = Environments(toys.register("Twin", log=seen.append), [5, 6])
    envs.reset()
    actions = np.zeros((2, 2), np.float32)
    envs.step(actions)
    actions[1, 1] = np.nan
    with pytest.raises(PolyakError, match=r"action\[1\] is nan at step 4 in environment 1"):
        envs.step(actions)
    assert len(seen) == 2


class Overflowing(toys.Toy):
    """float64 numbers that float32 cannot hold, from the second step on."""

    def __init__(self, field: str = "obs", **kwargs: Any) -> None:
        box = Box(-np.inf, np.inf, (2,), np.float64)
        super().__init__(box, Box(-1.0, 1.0), **kwargs)
        self.field = field

    def first(self) -> np.ndarray:
        return np.array([0.0, 1e300 if self.t == 2 and self.field == "obs" else 0.0])

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        reward = 1e300 if self.t == 2 and self.field == "reward" else 0.0
        return self.first(), reward, False, False


@pytest.mark.parametrize(
    ("field", "name"), [("reward", r"reward is 1e\+300"), ("obs", r"observation\[1\] is inf")]
)
def test_numbers_beyond_float32_count_as_infinite(field: str, name: str) -> None:
    env_id = f"toys/Overflowing{field.capitalize()}-v0"
    gymnasium.register(env_id, entry_point=Overflowing, kwargs={"field": field})
    envs = Environments(env_id, [0])
    envs.reset()
    envs.step(np.zeros((1, 1), np.float32))
    with pytest.raises(PolyakError, match=f"^{name} at step 2 in environment 0"):
        envs.step(np.zeros((1, 1), np.float32))


# MuJoCo

UNSTABLE = """
import numpy as np
from polyak.environments import Environment
env = Environment("HalfCheetah-v5")
env.reset(seed=0)
task = env.unwrapped
task.set_state(task.data.qpos + 1e12, task.data.qvel + 1e12)  # MuJoCo warns and starts afresh
env.step(np.zeros(6, np.float32))
assert task.data.warning.number.sum() > 0
"""


def test_mujoco_is_quiet(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNSTABLE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())  # least of all a MUJOCO_LOG.TXT


def test_training_does_without_opengl(tmp_path: Path) -> None:
    # A MUJOCO_GL that does not exist breaks `import mujoco` itself.
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "PYOPENGL_PLATFORM")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    answer = polyak_process(
        *("train", "ddpg", "--env-id", "InvertedPendulum-v5", "--total-timesteps", 30),
        *("--learning-starts", 20, "--batch-size", 8, "--hidden-dim", 8, "--eval-episodes", 1),
        cwd=tmp_path,
        env=environment | {"MUJOCO_GL": "nonsense"},
    )
    assert answer.code == 0, answer.err
    assert "Traceback" not in answer.err
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
