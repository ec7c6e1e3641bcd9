"""The page of environments/browser as a program: it starts `main`, and opens the page in a browser.

    python page_program.py URL_OF_DEVTOOLS --rlx-server HOST:PORT --name NAME

Its exit status is the one that a program would have which ends as the page does.
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
CONTINUES = ("connecting to", "playing at")


def main() -> int:
    browser, *flags = sys.argv[1:]
    argv = [sys.executable, str(MAIN), *flags, "--num-envs", "2"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        tab = open_tab(browser, process.stdout.readline().split()[-1])
        try:
            tab.wait_for("globalThis.shown && shown.status")
            while True:
                status = tab.evaluate("shown.status")
                if status.startswith("finished: "):
                    return 0
                if not status.startswith(CONTINUES) and "; next attempt in" not in status:
                    print(status)
                    return 1 if tab.evaluate("document.getElementById('token').hidden") else 2
                time.sleep(0.05)
        finally:
            tab.call("Page.close")
            tab.close()
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    signal.alarm(120)  # if the process that started it is killed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
