"""The page of a report: whole by itself, safe whatever a run is called, and alive in a browser."""

from __future__ import annotations

import json
import os
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import sync_playwright

from polyak.report import page
from tests.plumbing import folders
from tests.plumbing.running import polyak_cli

pytest.importorskip("matplotlib")

HOSTILE = (
    "</script><script>document.title='broken'</script><img src=x onerror=\"alert('x')\">&amp;'"
)


class Parsed(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.data: Any = None
        self._json = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._json = dict(attrs).get("type") == "application/json"

    def handle_data(self, data: str) -> None:
        if self._json:
            self.data, self._json = json.loads(data), False
        self.texts.append(data)


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    folders.undrawn(monkeypatch)


@pytest.fixture
def here(here: Path) -> Path:
    """With runs of two experiments: three seeds of one, one of the other, and one unfinished."""
    for seed, end in ((1, 600.0), (2, 700.0), (3, 800.0)):
        folders.write(here / "runs" / f"td3{seed}", seed=seed, seconds=0.06 * seed,
                      evaluations=[(0, 0.0), (500, end / 2), (1000, end)],
                      episodes=[(k, float(k)) for k in range(10, 1001, 10)])  # fmt: skip
    common: dict[str, Any] = {"algorithm": "sac", "exp_name": HOSTILE}
    command = ["/x/polyak", "train", "sac", f"--exp-name={HOSTILE}"]
    folders.write(here / "runs" / "sac", evaluations=[(0, 0.0), (1000, 90.0)], **common,
                  context={"command": command})  # fmt: skip
    folders.write(here / "runs" / "cut", evaluations=[(0, 0.0), (500, 50.0)], seed=4, step=500,
                  state="failed", total_timesteps=1000, **common)  # fmt: skip
    return here


def written(*arguments: object) -> tuple[str, Parsed]:
    answer = polyak_cli("report", *(arguments or ("runs",)))
    assert answer.code == 0, answer.err
    text = Path("report/report.html").read_text("utf-8")
    return text, Parsed(text)


def test_the_page_needs_nothing_else(here: Path) -> None:
    text, found = written()
    policy = [attributes for tag, attributes in found.tags
              if attributes.get("http-equiv") == "Content-Security-Policy"]  # fmt: skip
    assert (policy[0]["content"] or "").startswith("default-src 'none'")
    for tag, attributes in found.tags:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
        assert tag not in ("iframe", "object", "embed", "base")
    assert "@import" not in text and "url(" not in text


def test_names_are_text(here: Path) -> None:
    _, found = written()
    assert [tag for tag, _ in found.tags].count("script") == 3  # ours: data, uPlot, page
    assert not any("onerror" in attributes for _, attributes in found.tags)
    assert HOSTILE in found.texts  # the cell of a table, unharmed
    assert HOSTILE in [experiment["name"] for experiment in found.data["experiments"]]


def test_the_data_of_the_curves(here: Path) -> None:
    _, found = written()
    (task,) = found.data["tasks"]
    evaluation = task["curves"]["evaluation"]["steps"]
    assert evaluation["x"] == [0, 500, 1000]
    kinds = [entry["kind"] for entry in evaluation["series"]]
    # `page.js` takes the two series before a mean for the ends of its interval.
    assert kinds == ["seed", "unfinished", "mean", "seed", "seed", "seed", "low", "high", "mean",
                     "published"]  # fmt: skip
    lone, unfinished, _, *_, low, high, mean, published = evaluation["series"]
    assert (lone["seed"], lone["n"], lone["y"]) == ("1", 1, [0, 45, 90])
    assert unfinished["y"] == [0, 50, None]
    assert mean["n"] == 3 and mean["y"] == [0, 350, 700]
    half = 4.302653 * 100 / np.sqrt(3)
    assert (low["y"][2], high["y"][2]) == pytest.approx((700 - half, 700 + half), abs=0.01)
    assert published["label"] == "TD3, Fujimoto et al. 2018, HalfCheetah-v1 (n = 10)"
    time = task["curves"]["evaluation"]["time"]
    assert time["x"][-1] == pytest.approx(3.0)  # minutes of the slowest seed
    reached = [x for x, y in zip(time["x"], time["series"][-1]["y"], strict=True) if y is not None]
    assert max(reached) == pytest.approx(1.0, abs=0.03)  # the mean ends with the fastest
    training = task["curves"]["training"]["steps"]["series"][-1]
    assert training["kind"] == "mean" and training["y"][-1] == 1000


def test_recordings_are_in_the_page_if_they_are_small_pictures(here: Path) -> None:
    gif = b"GIF89a" + bytes(100)
    for name, content in (
        ("td31", gif),
        ("td32", b"<html>"),  # no picture, whatever its name
        ("td33", gif + bytes(page.LARGEST_GIF)),
    ):
        (here / "runs" / name / "videos").mkdir()
        (here / "runs" / name / "videos" / "replay.gif").write_bytes(content)
    _, found = written()
    images = [a for tag, a in found.tags if tag == "img"]
    films = [a for a in images if (a["src"] or "").startswith("data:image/gif;base64,")]
    assert [film["alt"] for film in films] == ["HalfCheetah-v5, td3_continuous_action, seed 1"]


def test_recordings_beyond_the_room_are_counted(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "ALL_GIFS", 250)
    for seed in (1, 2, 3):
        (here / "runs" / f"td3{seed}" / "replay.gif").write_bytes(b"GIF89a" + bytes(100))
    text, _ = written()
    assert "1 more left out" in text


def test_runs_have_their_command_and_configuration(here: Path) -> None:
    _, found = written()
    assert any("polyak train sac" in text for text in found.texts)
    configurations = [text for text in found.texts if '"learning_starts": 100' in text]
    assert len(configurations) == 5
    assert any("failed at step 500" in text for text in found.texts)


@pytest.fixture
def browser() -> Any:
    """Headless Chromium, where it is installed."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
    if path is None:
        assert not os.environ.get("POLYAK_TESTS_NEED_CHROMIUM")  # set by continuous integration
        pytest.skip("no Chromium")
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


INK = """() => {
    const {width, height} = document.querySelector('canvas');
    const copy = new OffscreenCanvas(width, height).getContext('2d', {willReadFrequently: true});
    copy.drawImage(document.querySelector('canvas'), 0, 0);
    const pixels = copy.getImageData(0, 0, width, height).data;
    const near = (i, ...rgb) => rgb.every((v, k) => Math.abs(pixels[i + k] - v) < 12);
    let blue = 0, orange = 0, sum = 0;
    for (let i = 0; i < pixels.length; i += 4) {
        blue += pixels[i + 3] > 200 && near(i, 31, 119, 180);
        orange += pixels[i + 3] > 200 && near(i, 255, 127, 14);
        sum = (sum * 31 + pixels[i] + pixels[i + 3]) % 1000003;
    }
    return {blue, orange, sum};
}"""
"""How much of the first two experiments' colours is on the first chart, and a checksum of it."""


def test_the_page_in_chromium(here: Path, browser: Any) -> None:
    written()
    opened = browser.new_page(viewport={"width": 1200, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("dialog", lambda dialog: said.append(dialog.message))
    opened.on("request", lambda request: asked.append(request.url))
    address = Path("report/report.html").resolve().as_uri()
    opened.goto(address)
    opened.wait_for_selector("canvas")

    def ink() -> dict[str, int]:
        opened.wait_for_timeout(100)
        found: dict[str, int] = opened.evaluate(INK)
        return found

    # Orange is the second experiment by name: TD3. Blue is the hostile one.
    both = ink()
    assert both["blue"] > 100 and both["orange"] > 100
    boxes = opened.locator("#experiments input")
    boxes.nth(0).uncheck()
    assert ink()["blue"] == 0 and ink()["orange"] > 100
    boxes.nth(0).check()
    assert ink() == both

    opened.locator("#seeds-shown").check()
    seeds = ink()
    assert seeds != both
    opened.locator("#seeds input").nth(2).uncheck()  # one of TD3's
    assert ink() != seeds
    opened.locator("#seeds-shown").uncheck()
    opened.locator("#published").uncheck()
    assert ink() != both
    opened.locator("#published").check()

    opened.locator("#axis").select_option("time")
    time = ink()
    assert time != both and time["orange"] > 100
    opened.locator("#axis").select_option("steps")
    opened.locator("#protocol").select_option("training")
    training = ink()
    assert training != both and training["orange"] > 100
    opened.locator("#smoothing").fill("15")
    assert opened.locator("#window").inner_text() == "mean of 31 points"
    assert ink() != training
    opened.locator("#smoothing").fill("0")
    opened.locator("#protocol").select_option("evaluation")

    over = opened.locator(".u-over").first
    size = over.bounding_box()
    assert size is not None
    over.hover(position={"x": size["width"] * 0.98, "y": 50})
    tip = opened.locator(".tip").first.inner_text()
    assert "environment steps: 1,000" in tip
    assert "td3_continuous_action (n = 3): 700 [451.59, 948.41]" in tip
    assert f"{HOSTILE} (n = 1): 90" in tip
    opened.locator("details summary").first.click()
    assert '"env_id": "HalfCheetah-v5"' in opened.locator("details pre").first.inner_text()
    assert opened.title() == "Polyak report"
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [address]
