"""Diagrams of the loop, of policies, of tokens and of memory; each is drawn from plain numbers."""
