"""Everything of other libraries that hftune reaches into or replaces: listed with its reason, and installed from here.

The list is `symbols.csv` (columns: `symbols.py`); a test (`tests/unit/compat/test_checking.py`) and `hftune doctor`
hold it against the installed libraries.
"""
