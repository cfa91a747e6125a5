"""Draw docs/img/tensorboard.png: four short runs in TensorBoard, as a user sees them.

    python docs/tensorboard_picture.py           # minutes; needs Chromium and chromedriver

It trains the baseline and a variant for each of the three experiments, starts TensorBoard on
them, and takes a picture of its charts.
"""

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.browser import chromium  # noqa: E402

VARIANTS = ("sdpa", "unscaled", "flipped", "identical_heads")
# One layer with two heads of width 128, which saturate without the scale.
SETTINGS = (
    "preset=micro model.n_layer=1 model.n_embd=256 model.n_head=2 optim.lr=1e-3 optim.min_lr=1e-4 "
    "trainer.max_steps=200 trainer.val_check_interval=50 trainer.accelerator=cpu"
)
WIDTH, HEIGHT = 1480, 1440  # three columns of charts, down to the last one on attention
SECONDS = 60  # until TensorBoard has drawn all charts


def train(folder: Path) -> Path:
    """Train the variants; return a directory in which each has a short name."""
    variants = [f"attn={','.join(VARIANTS)}", f"outputs={folder}", "name=lab"]
    subprocess.run(
        [sys.executable, "train.py", "-m", *SETTINGS.split(), *variants], cwd=ROOT, check=True
    )
    named = folder / "named"
    for name in VARIANTS:
        (run,) = (folder / "lab").glob(f"attn={name}[,]*/seed=0")
        (named / f"attn={name}").mkdir(parents=True)
        (named / f"attn={name}" / "seed=0").symlink_to(run)
    return named


def take_picture(runs: Path, picture: Path) -> None:
    """Show the runs in TensorBoard and save what its custom scalars look like."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["-m", "tensorboard.main", "--logdir", ".", "--port", str(port)]
    with subprocess.Popen([sys.executable, *command], cwd=runs) as board, chromium() as browser:
        try:
            time.sleep(SECONDS)  # it reads the runs once when it starts
            size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
            browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.driver.get(f"http://127.0.0.1:{port}/#custom_scalars&_smoothingWeight=0")
            time.sleep(SECONDS)
            browser.driver.save_screenshot(str(picture))
        finally:
            board.terminate()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        take_picture(train(Path(folder)), ROOT / "docs" / "img" / "tensorboard.png")
    print(ROOT / "docs" / "img" / "tensorboard.png")
