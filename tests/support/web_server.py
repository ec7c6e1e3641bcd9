"""A web server for the pages of a test."""

import contextlib
import functools
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


@contextlib.contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serves the files of a folder; gives the URL."""
    handler = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=folder)) as web:
        Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_address[1]}/"
        web.shutdown()
