import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from scripted_server import serve

__all__ = ["serve"]
