"""Servicers and routes: decode, one engine call, encode."""
