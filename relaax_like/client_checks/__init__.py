"""Checks of foreign clients: a server that is unusual on purpose, and judges what it is sent."""
