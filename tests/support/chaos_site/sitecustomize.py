"""Simulates a bad network in a program; see `support.chaos`."""

import os

if os.environ.get("RELAAX_CHAOS"):
    from support.chaos import install_from_environment

    install_from_environment()
