import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "client"))
# As the programs do: a folder's modules are a package of the folder's name.
sys.path.append(str(Path(__file__).parents[2] / "environments"))

from scripted_server import serve

__all__ = ["serve"]
