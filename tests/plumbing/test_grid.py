"""Grids: what they expand to, what is refused, and how a Slurm template is filled."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polyak import settings
from polyak.algorithms import ALGORITHMS
from polyak.algorithms.configs import CONFIGS
from polyak.benchmark import grid, local, slurm, tags
from polyak.benchmark.grid import Experiment, Grid
from polyak.benchmark.status import Index, last_step, standing
from polyak.cli.train_flags import train_options
from polyak.errors import PolyakError
from polyak.runs import Run
from tests.plumbing.running import SMALL, TWIN, flags, polyak_cli, train

GRIDS = Path(__file__).parents[2] / "benchmarks" / "grids"
SMALL_FLAGS = flags(**{k: v for k, v in SMALL.items() if k != "env_id"})
TABLE: dict[str, Any] = {"env_ids": (TWIN, "toys/One-v0"), "algorithms": ("td3",), "num_seeds": 2}


def expand(*arguments: str, **fields: Any) -> list[Experiment]:
    return grid.expand(Grid(**TABLE | fields), train_options, ("--threads", "1"), arguments)


def printed(*arguments: object) -> list[str]:
    answer = polyak_cli("benchmark", *arguments, "--workers", 0)
    assert answer.code == 0, answer.err
    return answer.out.splitlines()


# What a grid expands to


def test_a_run_for_each_task_experiment_and_seed() -> None:
    experiments = expand(*SMALL_FLAGS, algorithms=("td3", "sac"), start_seed=5)
    assert [e.name for e in experiments] == ["td3_continuous_action", "sac_continuous_action"]
    for experiment in experiments:
        assert [(job.env_id, job.seed) for job in experiment.jobs] == [
            (TWIN, 5), (TWIN, 6), ("toys/One-v0", 5), ("toys/One-v0", 6),
        ]  # fmt: skip
        for index, job in enumerate(experiment.jobs):
            n = len(experiment.seeds)
            assert job.env_id == experiment.env_ids[index // n]
            assert job.seed == experiment.seeds[index % n]
            assert job.setup is not None
            assert job.setup.settings.env_id == job.env_id
            assert job.setup.settings.seed == job.seed
            assert job.setup.settings.total_timesteps == job.steps == SMALL["total_timesteps"]


def test_printed_commands_are_those_of_polyak_train() -> None:
    lines = printed("--env-ids", TWIN, "--algorithms", "td3", *SMALL_FLAGS, "--num-seeds", 2)
    assert len(lines) == 2
    for seed, line in enumerate(lines, 1):
        program, command, name, *rest = shlex.split(line)
        assert (program, command, name) == ("polyak", "train", "td3")
        chosen = settings.setup(name, _without_resume(train_options(name, rest))).settings
        assert (chosen.env_id, chosen.seed, chosen.total_timesteps) == (TWIN, seed, 60)


def _without_resume(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "resume"}


def test_flags_win_over_the_grid_which_wins_over_defaults() -> None:
    fields = {"settings": {"total_timesteps": 40_000, "gamma": 0.9, "threads": 3}}
    (experiment,) = expand("--gamma", "0.8", **fields)
    setup = experiment.jobs[0].setup
    assert setup is not None
    assert (setup.settings.total_timesteps, setup.settings.threads) == (40_000, 3)
    assert setup.config.gamma == 0.8


def test_an_experiment_names_its_backend() -> None:
    (experiment,) = expand(algorithms=("sac_continuous_action",), backends=("nothing",))
    assert experiment.name == "sac_continuous_action"


@pytest.mark.parametrize(("algorithm", "backend"), ALGORITHMS)
def test_every_algorithm_and_backend(algorithm: str, backend: str) -> None:
    (experiment,) = expand(algorithms=(algorithm,), backends=(backend,))
    setup = experiment.jobs[0].setup
    assert setup is not None
    assert (setup.settings.algorithm, setup.settings.backend) == (algorithm, backend)


def test_threads_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "cores", lambda: 8)
    seen: list[str] = []

    def run(jobs: list[grid.Job], *rest: Any) -> list[grid.Job]:
        seen.append(jobs[0].command[jobs[0].command.index("--threads") + 1])
        return []

    monkeypatch.setattr(local, "run", run)
    for workers in (1, 3, 16):
        polyak_cli("benchmark", "--env-ids", TWIN, "--algorithms", "td3", "--workers", workers)
    assert seen == ["8", "2", "1"]


def test_another_command() -> None:
    line = "python 'my script.py' --fast"
    lines = printed("--env-ids", "A-v0", "--command", line, "--num-seeds", 1, "--lr", "3")
    assert lines == ["python 'my script.py' --fast --lr 3 --env-id A-v0 --seed 1"]


# The grids that ship


@pytest.mark.parametrize("path", sorted(GRIDS.glob("*_action*.toml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("variant", [None, "v4"])
def test_official_grids(path: Path, variant: str | None) -> None:
    read = grid.read(path, variant)
    (algorithm,), (backend,) = read.algorithms, read.backends
    if (algorithm, backend) not in ALGORITHMS:
        with pytest.raises(PolyakError, match=f"no {algorithm} in {backend}"):
            grid.expand(read, train_options, (), ())
        return
    (experiment,) = grid.expand(read, train_options, (), ())
    assert experiment.name == path.stem
    version = variant or "v5"
    tasks = ("HalfCheetah", "Walker2d", "Hopper", "InvertedPendulum", "Humanoid", "polyak/Pusher")
    assert experiment.env_ids == tuple(f"{task}-{version}" for task in tasks)
    assert [job.steps for job in experiment.jobs] == [1_000_000] * 18


def test_there_is_an_official_grid_for_each_experiment() -> None:
    assert len(list(GRIDS.glob("*_action*.toml"))) == 2 * len(CONFIGS)


def test_the_quick_grid_takes_under_an_hour_on_two_cores() -> None:
    experiments = grid.expand(grid.read(GRIDS / "quick.toml"), train_options, (), ())
    speed = {"ddpg": 100, "td3": 100, "sac": 60}  # steps per second and core
    seconds = sum(
        job.steps / speed[experiment.name.split("_")[0]]
        for experiment in experiments
        for job in experiment.jobs
    )
    assert seconds / 2 < 50 * 60


# What is refused, in one line, before anything starts

GIVEN = ("--env-ids", TWIN, "--algorithms", "td3")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("", "say what to run"),
        ("--env-ids A", "say what to run"),
        ("--algorithms td3", "say what to run"),
        ("--env-ids A --algorithms td4", "did you mean td3"),
        ("--env-ids A --algorithms td3 --backends tensorflow", "no td3 in tensorflow; there is"),
        ("--env-ids A --algorithms td3 --command x", "instead of --algorithms"),
        ("--env-ids A A --algorithms td3", "A stands twice"),
        ("--env-ids A --algorithms td3 td3_continuous_action", "one name"),
        ("--env-ids A --command 'x", "cannot be split"),
        ("--env-ids Nothing-v0 --algorithms td3", "Nothing-v0"),
        ("missing.toml", "cannot read the grid missing.toml"),
        ("--variant v4", "--variant is of a grid file"),
        ("* --total-timestep 5", "did you mean --total-timesteps"),
        ("* --env-id A", "--env-id differs between the runs of a benchmark: use --env-ids"),
        ("* --seed 4", "--num-seeds and --start-seed"),
        ("* --save-path x", "--save-path differs"),
        ("* --record-path x.gif", "--record-path is for a single run"),
        ("* --skip-train", "--skip-train is for a single run"),
        ("* --resume runs/one", "--resume RUN is for a single run"),
        ("* --ray-gpus-per-run -1", "must be a fraction or a whole number, not -1.0"),
        ("* --ray-gpus-per-run 1.5", "must be a fraction or a whole number, not 1.5"),
        ("* --ray-gpus-per-run nan", "must be a fraction or a whole number, not nan"),
        ("* --gamma 2", "--gamma must be between 0 and 1"),
        ("* --workers -1", "--workers must be 0 or more"),
        ("* --workers two", "--workers"),
        ("* --num-seeds 0", "--num-seeds must be 1 to 10000"),
        ("* --num-seeds 100000000", "--num-seeds must be 1 to 10000"),
        ("* --num-envs 1001", "--num-envs must be at most 1000"),
        ("* --launcher moon", "moon"),
        ("* --launcher ray --slurm-nodes 2", "no meaning with --launcher ray"),
        ("* --address x --launcher local", "no meaning with --launcher local"),
        ("* --slurm-ntasks 0", "--slurm-ntasks must be positive"),
        ("* --slurm-args 'x", "--slurm-args cannot be split"),
        ("* --slurm-template-path none.sbatch --workers 0", "cannot read the Slurm template"),
        ("--status", "nothing was submitted from here"),
    ],
)
def test_refused(arguments: str, reason: str, here: Path) -> None:
    words = arguments.split()
    if words[:1] == ["*"]:
        words[:1] = GIVEN
    assert reason in polyak_cli("benchmark", *words).line
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("env_ids = 3", "env_ids must be a list of names"),
        ("env_ids = [3]", "env_ids must be a list of names"),
        ("num_seeds = true", "num_seeds must be a whole number"),
        ("command = 1", "command must be a text"),
        ("settings = 1", "settings must be a table"),
        ("variants = 3", "variants in grid.toml must be tables"),
        ("variants = {v4 = 4}", "variants in grid.toml must be tables"),
        ("env_ids = []", "env_ids in a grid file"),
        ("env_id = ['A']", "did you mean env_ids"),
        ("env_ids = ", "not valid TOML"),
        ("algorithms = ['td3']\nenv_ids = ['A']\n[settings]\ngama = 1", "did you mean --gamma"),
        ("algorithms = ['td3']\nenv_ids = ['A']\n[settings]\ngamma = [1]", "one value"),
    ],
)
def test_grid_files_that_are_refused(text: str, reason: str, here: Path) -> None:
    (here / "grid.toml").write_text(text)
    assert reason in polyak_cli("benchmark", "grid.toml").line


def test_a_variant_that_does_not_exist(here: Path) -> None:
    quick, official = GRIDS / "quick.toml", GRIDS / "td3_continuous_action.toml"
    assert "has no variant 'v4'" in polyak_cli("benchmark", quick, "--variant", "v4").line
    assert "has no variant 'v3': v4" in polyak_cli("benchmark", official, "--variant", "v3").line
    assert "have runs in common" in polyak_cli("benchmark", quick, quick).line


def test_commands_of_the_docs(here: Path) -> None:
    text = (GRIDS.parents[1] / "docs" / "benchmark.md").read_text().replace("\\\n", "")
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (here / "grid.toml").write_text(toml)
    (here / "benchmarks").symlink_to(GRIDS.parent)
    lines = re.findall(r"^polyak benchmark (.*?)\s*(?:#.*)?$", text, re.MULTILINE)
    assert len(lines) >= 6
    for line in lines:
        if line != "--status":
            answer = polyak_cli("benchmark", *shlex.split(line), "--workers", "0")
            assert answer.code == 0, answer.err


# Which runs are the same


def test_a_run_is_known_by_what_it_computes(tmp_path: Path) -> None:
    run = train(tmp_path, "td3", seed=3, threads=1)
    config = run.config

    def job(*more: str) -> grid.Job:
        runs_dir = ("--runs-dir", str(tmp_path))
        return grid.job(["td3", *flags(**SMALL), "--seed", "3", *runs_dir, *more], train_options)

    assert grid.identity(config) == job().key
    for place in (("--threads", "2"), ("--tags", "a,b"), ("--device", "cpu")):
        assert job(*place).key == job().key
    for other in (("--seed", "4"), ("--gamma", "0.9"), ("--exp-name", "x"), ("--save-model",)):
        assert job(*other).key != job().key
        assert Index().runs(job(*other)) == []
    assert [found.path for found in Index().runs(job())] == [run.path]
    # A setting that is newer than the run counts as its default.
    assert grid.identity({k: v for k, v in config.items() if k != "capture_video"}) == job().key


def test_folders_that_are_no_runs_are_passed_over(tmp_path: Path) -> None:
    run = train(tmp_path)
    for number, text in enumerate(("{}", "nonsense", '{"algorithm": "ppo"}', '{"algorithm": []}')):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "config.json").write_text(text)
    words = ["ddpg", *flags(**SMALL), "--runs-dir", str(tmp_path)]
    job = grid.job(words, train_options)
    index = Index()
    assert [found.path for found in index.runs(job)] == [run.path]
    assert index.finished(job)
    assert index.step(job) == 60
    (run.path / "status.json").unlink()
    assert not index.finished(job)


def test_the_last_step_of_a_cut_file(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert last_step(run) == 0
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": i, "x": "y" * 99}) + "\n" for i in range(200)))
    assert last_step(run) == 199
    with path.open("a") as file:
        file.write('{"step": 20')
    assert last_step(run) == 199


def test_standings(tmp_path: Path) -> None:
    run = train(tmp_path)
    words = ["ddpg", *flags(**SMALL), "--runs-dir", str(tmp_path)]
    job = grid.job(words, train_options)

    def state(queue: str | None = None, *, alive: bool = False, submitted: bool = False) -> str:
        return standing(job, Index(), queue=queue, alive=alive, submitted=submitted).state

    assert state() == state("RUNNING") == "done"
    for written in ("running", "failed", "interrupted"):
        run.write_status(written, 30)
        assert state("PENDING") == state("SUSPENDED") == "queued"
        assert state("RUNNING") == state("COMPLETING") == state(alive=True) == "running"
        # What says that it is running, but is not in the queue nor a process, was killed.
        expected = "interrupted" if written == "interrupted" else "failed"
        assert state() == state(submitted=True) == expected
    job = grid.job([*words, "--seed", "9"], train_options)
    assert state() == "missing"
    assert state("PENDING") == "queued"
    assert state(submitted=True) == "failed"


# Tags


def test_tags_reach_the_run_and_wandb(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def run(jobs: list[grid.Job], workers: int, environment: dict[str, str], index: Index) -> Any:
        assert jobs[0].setup is not None
        seen.update(environment, tags=jobs[0].setup.settings.tags)
        return []

    monkeypatch.setattr(local, "run", run)
    monkeypatch.setattr(tags, "automatic", lambda: ["v1", "abc"])
    monkeypatch.setenv("WANDB_TAGS", "mine,v1")
    polyak_cli("benchmark", *GIVEN, "--tags", "a,b", "--auto-tag")
    assert seen == {"WANDB_TAGS": "mine,v1,a,b,abc", "tags": "a,b,v1,abc"}


def test_automatic_tags(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(here.parent))
    with pytest.raises(PolyakError, match="needs git and a repository"):
        tags.automatic({})

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        done = subprocess.run(("git", *who, *arguments), check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init")
    git("commit", "--allow-empty", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert tags.automatic({}) == [f"no-tag-1-g{commit[:7]}", commit]
    git("tag", "v1.0")
    assert tags.automatic({}) == ["v1.0", commit]
    git("commit", "--allow-empty", "-m", "two")
    second = git("rev-parse", "HEAD")
    assert tags.automatic({})[0].startswith("v1.0-1-g")
    for name, value in (
        ("GITHUB_REF", "refs/pull/12/merge"),
        ("CI_MERGE_REQUEST_IID", "12"),
        ("CIRCLE_PULL_REQUEST", "https://github.com/a/b/pull/12"),
    ):
        assert tags.automatic({name: value})[1:] == [second, "pr-12"]
    assert tags.automatic({"GITHUB_REF": "refs/heads/main", "BUILDKITE_PULL_REQUEST": "false"}) == [
        tags.automatic({})[0], second,
    ]  # fmt: skip


# Slurm's template


def filled(text: str, folder: Path, **wanted: Any) -> list[str]:
    (folder / "template").write_text(text)
    (experiment,) = expand("--gamma", "0.5")
    resources = slurm.Resources(template=folder / "template", **wanted)
    return slurm.fill(experiment, range(4), 3, resources).splitlines()


def test_placeholders(tmp_path: Path) -> None:
    text = (
        "{{array}}\n{{env_ids}}\n{{seeds}}\n{{len_seeds}}\n{{command}}\n{{gpus_per_task}}\n"
        "{{ntasks}}\n#SBATCH --nodes={{nodes}}\n{{nodes}}\n{{cpus_per_gpu}}\n"
    )
    lines = filled(text, tmp_path, gpus_per_task=2, ntasks=3, nodes=4, total_cpus=24)
    command = lines.pop(4)
    assert lines == [
        "0-3%3", f"({TWIN} toys/One-v0)", "(1 2)", "2", "2", "3",
        "#SBATCH --nodes=4", "#SBATCH --nodes=4", "4",
    ]  # fmt: skip
    assert command.split()[1:4] == ["-m", "polyak", "train"]
    assert command.endswith("td3 --backend torch --threads 1 --gamma 0.5")


def test_lines_without_a_value_are_left_out(tmp_path: Path) -> None:
    text = "#SBATCH --gpus-per-task={{gpus_per_task}}\n#SBATCH --nodes={{nodes}}\n{{nodes}}\nx\n"
    assert filled(text, tmp_path) == ["x"]
    with pytest.raises(PolyakError, match=r"has \{\{arrays\}\}, but there is only array"):
        filled("{{arrays}}", tmp_path)


@pytest.mark.parametrize(
    ("indices", "expected"),
    [([0], "0"), ([0, 1, 2], "0-2"), ([0, 2, 3, 4, 7], "0,2-4,7"), ([1, 3], "1,3")],
)
def test_ranges(indices: list[int], expected: str) -> None:
    assert slurm._ranges(indices) == expected


def test_the_template_that_ships_is_a_script_for_bash(tmp_path: Path) -> None:
    (experiment,) = expand()
    for wanted in (slurm.Resources(), slurm.Resources(gpus_per_task=1, total_cpus=8, nodes=1)):
        text = slurm.fill(experiment, range(4), 4, wanted)
        assert "{{" not in text
        assert ("--cpus-per-gpu=8" in text) == ("--gpus-per-task=1" in text) == bool(wanted.nodes)
        subprocess.run(("bash", "-n"), input=text, text=True, check=True)


def test_jobs_can_be_handed_to_other_processes() -> None:
    (experiment,) = expand()
    job = experiment.jobs[0]
    assert pickle.loads(pickle.dumps(job)) == job
    assert dataclasses.replace(job, arguments=()) != job


# Imports


def test_help_needs_no_heavy_library() -> None:
    code = (
        "import sys\nfrom polyak.cli import main\n"
        "try: main(['benchmark', '--help'])\nexcept SystemExit: pass\n"
        "heavy = ('torch', 'jax', 'gymnasium', 'mujoco', 'ray', 'tensorboardX')\n"
        "sys.exit(' '.join(name for name in heavy if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
    assert "--slurm-template-path" in done.stdout
