"""Servers over HTTP: a client, and a server that does as its script says."""
