"""One seed per experiment, from which the seeds of all its random generators are derived."""

import hashlib
import json


def derive_seed(seed: int, *names: str | int) -> int:
    """Derives the seed of one generator; the same arguments give the same seed on every machine.

        generator = np.random.default_rng(derive_seed(experiment.seed, "agent", client_name, slot))

    Args:
      seed: of the experiment.
      *names: identify the generator; different names give independent seeds.

    Returns:
      0 to 2**31 - 1, which NumPy, TensorFlow and Gymnasium all accept.
    """
    # JSON distinguishes ("ab", "c") from ("a", "bc"), and 1 from "1".
    text = json.dumps([seed, *names], ensure_ascii=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
