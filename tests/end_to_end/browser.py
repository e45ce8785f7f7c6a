"""Opens a page in a headless Chromium, for the scripts of this folder."""

import os
import re
import shutil
import subprocess
import tempfile

NAMES = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome"]


def find():
    """The path of a Chromium, or nothing. TROUPE_CHROMIUM names one."""
    return os.environ.get("TROUPE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """What a page looked like after its scripts had run: its elements as text, and messages of its console."""

    def __init__(self, path, width=1280, dark=False):
        with tempfile.TemporaryDirectory(prefix="troupe-browser-") as profile:
            done = subprocess.run(
                [find(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
                 f"--window-size={width},1600", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                 "--virtual-time-budget=5000", "--enable-logging=stderr", "--dump-dom", f"file://{path}"],
                capture_output=True, text=True, check=True, timeout=120)
        self.dom = done.stdout
        self.console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    def count(self, pattern):
        return len(re.findall(pattern, self.dom))
