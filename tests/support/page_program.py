"""A page as a program, which ends when the page has ended; in a window of a browser that runs.

    python page_program.py URL_OF_DEVTOOLS browser --rlx-server HOST:PORT --name NAME
    python page_program.py URL_OF_DEVTOOLS URL --rlx-server HOST:PORT --name NAME

The page is that of environments/browser, served by its `main`; or one of `support/godot4.py`, at
URL, which takes the flags from its address.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from support.chromium import open_tab
from support.cluster import ROOT

MAIN = ROOT / "environments" / "browser" / "main"
# The exit status that a program would have; null: it continues.
STATUS = """(() => {
  const status = globalThis.shown ? shown.status : "";
  if (status.startsWith("finished: ")) return 0;
  if (/^$|^connecting to|^playing at|; next attempt in /.test(status)) return null;
  return document.getElementById("token").hidden ? 1 : 2;
})()"""
GODOT_STATUS = "globalThis.exitStatus === undefined ? null : exitStatus"


def watch(browser: str, url: str, expression: str) -> int:
    """Opens a page, and returns its exit status when it has one."""
    tab = open_tab(browser, url, in_window=True)
    try:
        while True:
            status = tab.evaluate(expression)
            if status is not None:
                return int(status)
            time.sleep(0.05)
    finally:
        tab.call("Page.close")
        tab.close()


def main() -> int:
    browser, page, *flags = sys.argv[1:]
    if page != "browser":
        return watch(browser, f"{page}#{' '.join(flags)}", GODOT_STATUS)
    argv = [sys.executable, str(MAIN), *flags]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        return watch(browser, process.stdout.readline().split()[-1], STATUS)
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    signal.alarm(120)  # if the process that started it is killed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
