"""Pure functions from values of other tools to arguments of hftune, one file a topic."""
