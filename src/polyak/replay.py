"""The replay buffer: each observation stored once.

Row t of an environment holds the observation, the action taken on it, the reward and whether the
task terminated. What the action led to is the observation of row t + 1, except at the end of an
episode, where row t + 1 begins the next one: that last observation lies aside, and the row says
where.

    row            0      1      2      3      4
    obs            s0     s1     s2     s0'    s1'
    last           -      -      0      -      -        row 2 ends an episode;
    aside          [s3]                                 its next observation is aside[0]

Against storing obs and next_obs in every row this halves the memory (Humanoid-v5: 1.56 GB instead
of 2.86 GB for a million rows) and is exact at terminations, time limits and past the wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from polyak import memory
from polyak.algorithms.interface import Batch, Mirror, Slots
from polyak.algorithms.mirror import side_by_side
from polyak.errors import PolyakError

PART = 1 << 14
"""Transitions that are copied to a device at a time."""


class Replay:
    """A ring of transitions of N environments that step together.

    Args:
        capacity: transitions kept at most, rounded down to a multiple of `num_envs`.
        num_envs: N environments, stored side by side in one row.
        obs_dim: O.
        action_dim: A.
        mirror: makes a copy on a device from a number of rows, O and A, which then follows all that
            is stored here; or says None.

    Raises:
        PolyakError: the capacity is smaller than N.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        obs_dim: int,
        action_dim: int,
        mirror: Callable[[int, int, int], Mirror | None] = lambda *_: None,
    ) -> None:
        rows = capacity // num_envs
        if rows < 1:
            raise PolyakError(
                f"--buffer-size {capacity} holds no step of {num_envs} environments; raise it"
            )
        self.num_envs = num_envs
        self.capacity = rows * num_envs
        self.size = 0
        self.rows = 0
        """Rows stored so far, also those that the ring has overwritten since; numbers of rows in
        what follows count from the first of these."""
        # Slot = row * N + environment, so the slot after `s` in its own environment is s + N. One
        # row more than the capacity: the newest observation has no action yet.
        self._slots = self.capacity + num_envs
        self._newest = 0  # first slot of the row that has no action yet
        # zeros, which the system hands out page by page as they are written: a short run in a large
        # buffer stays small.
        self._obs = np.zeros((self._slots, obs_dim), np.float32)
        self._action = np.zeros((self._slots, action_dim), np.float32)
        self._reward = np.zeros(self._slots, np.float32)
        self._terminated = np.zeros(self._slots, bool)
        # Where in `_aside` the last observation lies, plus one; 0 where the next row follows.
        self._last = np.zeros(self._slots, np.int32)
        self._aside = np.zeros((64, obs_dim), np.float32)
        self._free = list(range(len(self._aside)))
        self._mirror = mirror(self._slots, obs_dim, action_dim)

    def add(
        self,
        obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        next_obs: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        following: np.ndarray,
    ) -> None:
        """Stores one step of all N environments.

        Args:
            obs: (N, O) acted on; must be the `following` of the step before.
            action: (N, A) in [-1, 1].
            reward: (N,).
            next_obs: (N, O) what the action led to, the last observation where an episode ended.
            terminated, truncated: (N,) bool.
            following: (N, O) acted on next; differs from `next_obs` only where an episode ended.
        """
        n = self.num_envs
        row = slice(self._newest, self._newest + n)
        self._newest = (self._newest + n) % self._slots
        following_row = slice(self._newest, self._newest + n)
        # In a full ring the following row is the oldest, and what it kept aside is free again.
        self._free.extend(int(last) - 1 for last in self._last[following_row] if last)
        self._last[following_row] = 0
        self._obs[row] = obs
        self._action[row] = action
        self._reward[row] = reward
        self._terminated[row] = terminated
        for env in np.flatnonzero(terminated | truncated):
            self._last[row.start + env] = self._keep_aside(next_obs[env]) + 1
        self._obs[following_row] = following
        self.size = min(self.size + n, self.capacity)
        self.rows += 1
        if self._mirror:
            added = Batch(obs, action, reward, next_obs, terminated)
            self._mirror.write(row.start, side_by_side(added))

    def draw(self, generator: np.random.Generator, batch_size: int) -> Batch | Slots:
        """What `sample` gives, or where it lies on the device if there is a mirror.

        Both take the same numbers from the generator.
        """
        if self._mirror:
            return Slots(self._mirror, self._drawn(generator, batch_size).astype(np.int32))
        return self.sample(generator, batch_size)

    def sample(self, generator: np.random.Generator, batch_size: int) -> Batch:
        """Draws transitions uniformly with replacement, in time independent of the capacity.

        The newest transition takes part: its next observation is already in place.

        Returns:
            A batch of fresh arrays, B = batch_size.
        """
        return self._transitions(self._drawn(generator, batch_size))

    def _drawn(self, generator: np.random.Generator, batch_size: int) -> np.ndarray:
        oldest = self._newest - self.size
        return (oldest + generator.integers(0, self.size, batch_size)) % self._slots

    def _transitions(self, slot: np.ndarray) -> Batch:
        next_obs = self._obs[(slot + self.num_envs) % self._slots]
        last = self._last[slot]
        ended = np.flatnonzero(last)
        next_obs[ended] = self._aside[last[ended] - 1]
        return Batch(
            obs=self._obs[slot],
            action=self._action[slot],
            reward=self._reward[slot],
            next_obs=next_obs,
            terminated=self._terminated[slot].astype(np.float32),
        )

    @property
    def oldest(self) -> int:
        """Number of the oldest row that is still there."""
        return self.rows - self.size // self.num_envs

    @property
    def newest(self) -> np.ndarray:
        """(N, O) what is acted on next, which has no action yet; not a copy."""
        return self._obs[self._newest : self._newest + self.num_envs]

    def rows_of(self, size: int) -> int:
        """How many rows have some `size` bytes: at most a twentieth of a buffer of any length."""
        each = bytes_needed(self.num_envs, self._obs.shape[1], self._action.shape[1])
        twentieth = self.capacity // self.num_envs // 20
        return max(min(size // each, max(twentieth, 1000)), 1)

    def read(self, begin: int, end: int) -> dict[str, np.ndarray]:
        """Copies of rows `begin` to `end` - 1, for `restore`.

        Returns obs (R N, O), action (R N, A), reward and terminated (R N,), and of the transitions
        that ended an episode: `ended` (K,), where they are among these, and `last` (K, O).
        """
        slot = self._slots_of(begin, end)
        ended = np.flatnonzero(self._last[slot])
        return {
            "obs": self._obs[slot],
            "action": self._action[slot],
            "reward": self._reward[slot],
            "terminated": self._terminated[slot],
            "ended": ended,
            "last": self._aside[self._last[slot[ended]] - 1],
        }

    def restore(
        self, rows: int, obs: np.ndarray, parts: Iterable[tuple[int, dict[str, np.ndarray]]]
    ) -> None:
        """Fills an empty buffer with what another one held; it then samples the same.

        Args:
            rows: how many the other had stored.
            obs: (N, O) what is acted on next.
            parts: number of the first row, and what `read` gave. Those that the ring has no place
                for are left out.

        Raises:
            ValueError: an array has not the type or shape that it should have, or a row is missing.
        """
        n, kept = self.num_envs, min(rows, self.capacity // self.num_envs)
        expected = rows - kept
        for begin, arrays in parts:
            count = len(arrays["reward"]) // n
            if begin > expected:
                raise ValueError(f"rows from {expected} to {begin} are missing")
            skip = min(max(expected - begin, 0), count)
            slot = self._slots_of(begin + skip, begin + count)
            for name in ("obs", "action", "reward", "terminated"):
                own, part = getattr(self, "_" + name), arrays[name][skip * n :]
                if part.dtype != own.dtype or part.shape != (len(slot), *own.shape[1:]):
                    raise ValueError(f"{name} is {part.dtype} {part.shape}")
                own[slot] = part
            for ended, last in zip(arrays["ended"], arrays["last"], strict=True):
                if not 0 <= ended < count * n or last.shape != self._aside.shape[1:]:
                    raise ValueError(f"last observation {last.shape} of transition {ended}")
                if ended >= skip * n:
                    self._last[slot[ended - skip * n]] = self._keep_aside(last) + 1
            expected = max(expected, begin + count)
        if expected != rows:
            raise ValueError(f"rows from {expected} to {rows} are missing")
        self.rows, self.size = rows, kept * n
        self._newest = rows * n % self._slots
        self._obs[self._newest : self._newest + n] = obs
        if self._mirror:
            # The row that has no action yet may be among them: it is not drawn before it is added.
            filled = min(rows * n, self._slots)
            for first in range(0, filled, PART):
                slot = np.arange(first, min(first + PART, filled))
                self._mirror.write(first, side_by_side(self._transitions(slot)))

    def episode(self, env: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """The running episode of an environment, which took `length` steps so far.

        Returns obs (length + 1, O), action (length, A) and reward (length,), or None if the ring
        has overwritten its beginning.
        """
        if length > self.rows - self.oldest:
            return None
        slot = self._slots_of(self.rows - length, self.rows + 1)[env :: self.num_envs]
        return self._obs[slot], self._action[slot[:-1]], self._reward[slot[:-1]]

    def cut(self, env: int, obs: np.ndarray) -> None:
        """Ends the running episode of an environment as a time limit would; `obs` begins the next.

        Nothing happens to an episode that has not begun.
        """
        newest = self._newest + env
        before = (newest - self.num_envs) % self._slots
        if self.rows and not self._last[before]:
            self._last[before] = self._keep_aside(self._obs[newest]) + 1
        self._obs[newest] = obs

    def _slots_of(self, begin: int, end: int) -> np.ndarray:
        """Where rows `begin` to `end` - 1 lie: slots (R N,), environments side by side."""
        first = np.arange(begin, end) * self.num_envs
        return ((first[:, None] + np.arange(self.num_envs)) % self._slots).ravel()

    @property
    def nbytes(self) -> int:
        """Bytes of everything stored, observations kept aside included."""
        arrays = (self._obs, self._action, self._reward, self._terminated, self._last, self._aside)
        return sum(array.nbytes for array in arrays)

    def _keep_aside(self, obs: np.ndarray) -> int:
        if not self._free:
            taken = len(self._aside)
            # A quarter more each time: few copies, little slack.
            more = np.zeros((taken + taken // 4, self._aside.shape[1]), np.float32)
            more[:taken] = self._aside
            self._aside = more
            self._free = list(range(taken, len(more)))
        slot = self._free.pop()
        self._aside[slot] = obs
        return slot


def bytes_needed(capacity: int, obs_dim: int, action_dim: int) -> int:
    """Bytes that a full buffer takes, without the last observations (one per episode)."""
    return capacity * (4 * (obs_dim + action_dim + 2) + 1)


def check_memory(capacity: int, obs_dim: int, action_dim: int, buffers: int = 1) -> str:
    """Says what one of some buffers will take, before hours of training find out.

    Returns:
        One line with the size.

    Raises:
        PolyakError: it cannot fit into the memory that is free now.
    """
    needed = buffers * bytes_needed(capacity, obs_dim, action_dim)
    free = memory.available()
    if needed > 0.9 * free:
        fits = int(0.9 * free / (buffers * bytes_needed(1, obs_dim, action_dim)))
        times = f"{buffers} times " if buffers > 1 else ""
        raise PolyakError(
            f"replay of {times}{capacity:,} transitions needs {needed / 1e9:.2f} GB and "
            f"{free / 1e9:.2f} GB are free: lower --buffer-size (at most {fits})"
        )
    needed //= buffers
    size = f"{needed / 1e9:.2f} GB" if needed > 1e8 else f"{needed / 1e6:.2f} MB"
    return f"replay: {capacity:,} transitions, {size} when full plus last observations of episodes"
