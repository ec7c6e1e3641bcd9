"""How many threads NumPy uses for a product."""

import os
import subprocess
import sys

import pytest

_SHOW = (
    "import numpy\n"
    "from threadpoolctl import threadpool_info\n"
    "from relaax_like.nn.threads import limit_blas_threads\n"
    "limit_blas_threads()\n"
    "print([one['num_threads'] for one in threadpool_info() if one['user_api'] == 'blas'])\n"
)
_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


@pytest.mark.parametrize(("chosen", "want"), [({}, "[1]"), ({"OPENBLAS_NUM_THREADS": "2"}, "[2]")])
def test_products_get_one_thread_unless_the_environment_says_more(
    chosen: dict[str, str], want: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", _SHOW],
        env={**environment, **chosen},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == want
