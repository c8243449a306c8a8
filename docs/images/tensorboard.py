"""Makes `tensorboard.png`: two small runs as TensorBoard shows them.

    pip install tensorboard          # and a Chromium
    python docs/images/tensorboard.py

Trains for a minute or two, starts TensorBoard on a free port and photographs three of its tabs.
"""

from __future__ import annotations

import argparse
import io
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from PIL import Image

import polyak

TABS = {
    "scalars&tagFilter=episodic_return%24&_smoothingWeight=0": 490,
    "images": 640,
    "hparams": 380,
}
"""Tabs by their address, and how many of their pixels are worth showing."""

WIDTH = 1400


def main() -> None:
    """Trains, photographs, and puts the tabs below one another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--logdir", type=Path, help="show these runs instead of new ones")
    parser.add_argument("--tensorboard", default="tensorboard", help="the program")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".png"))
    options = parser.parse_args()
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), "")
    if not browser:
        sys.exit("no Chromium found: install one")
    with tempfile.TemporaryDirectory() as folder:
        if not options.logdir:
            train(Path(folder) / "runs")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        board = subprocess.Popen(
            [options.tensorboard, "--logdir", options.logdir or "runs", "--port", str(port)],
            cwd=None if options.logdir else folder,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/data/plugin/scalars/tags")
            shots = [
                photograph(browser, f"http://127.0.0.1:{port}/#{tab}", height)
                for tab, height in TABS.items()
            ]
        finally:
            board.terminate()
            board.wait()
    sheet = Image.new("RGB", (WIDTH, sum(TABS.values())))
    top = 0
    for shot in shots:
        sheet.paste(shot, (0, top))
        top += shot.height
    sheet.quantize(128).save(options.output, optimize=True)
    print(options.output)


def train(folder: Path) -> None:
    """Two runs that differ in algorithm and settings, filmed."""
    for algorithm in ("ddpg", "sac"):
        polyak.train(
            algorithm,
            runs_dir=folder,
            env_id="InvertedPendulum-v5",
            total_timesteps=4_000,
            learning_starts=500,
            learning_rate=1e-3,
            eval_interval=500,
            eval_episodes=5,
            capture_video=True,
            progress=True,
        )


def wait_for(address: str) -> None:
    """Until TensorBoard answers with the runs that it has read, a minute at most."""
    for _ in range(60):
        time.sleep(1)
        try:
            with urllib.request.urlopen(address) as answer:  # noqa: S310 - our own server
                if len(answer.read()) > 10:
                    return
        except urllib.error.URLError:
            continue
    sys.exit(f"no runs at {address}")


def photograph(browser: str, address: str, height: int) -> Image.Image:
    """A page as Chromium draws it without a screen."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.png"
        arguments = f"--headless --no-sandbox --hide-scrollbars --window-size={WIDTH},{height}"
        waiting = "--virtual-time-budget=30000"  # for what the page loads and draws later
        subprocess.run(
            [browser, *arguments.split(), waiting, f"--screenshot={file}", address],
            check=True,
            capture_output=True,
            timeout=180,
        )
        return Image.open(io.BytesIO(file.read_bytes())).convert("RGB")


if __name__ == "__main__":
    main()
