"""Side-by-side measurements: `python -m bench [name …]`. Figures are ratios within one run, never asserted in tests."""
