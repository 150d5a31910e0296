"""Everything of other libraries that hftune reaches into or replaces: listed with its reason, and installed from here.

The lists are data: `replaced`, `imported`, `read` and `trainer_overrides` hold a `Touched` for each symbol. Their test
(`tests/unit/compat`) and `hftune doctor` hold them against the installed libraries.
"""
