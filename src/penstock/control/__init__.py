"""Keeping what runs equal to what is deployed.

`reconcile` decides (pure), `supervisor` looks and acts, `deploy` and `streams` say what is wanted, `up` starts and ends
it all, `lag` measures from outside how far each stream is behind.
"""
