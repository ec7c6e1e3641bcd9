"""The rlx server: accepts environments over TCP and hosts their agents."""
