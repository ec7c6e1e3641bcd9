"""The clients of `paced_client.c`, for a tenth of the processor time of clients in Python."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_LIBRARY = Path(__file__).parents[1] / "environments" / "c"


@contextlib.contextmanager
def compile_client() -> Iterator[Path]:
    """Gives the program, compiled by `$CC` or `cc` into a folder that is removed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "paced_client"
        compiler = os.environ.get("CC", "cc").split()
        flags = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{_LIBRARY}"]
        sources = [Path(__file__).with_name("paced_client.c"), _LIBRARY / "rlx_more.c"]
        subprocess.run([*compiler, *flags, "-o", program, *sources, "-lm"], check=True)
        yield program
