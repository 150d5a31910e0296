"""Models and data that lie elsewhere: object stores, ModelScope, registries of data sets. All become local paths."""
