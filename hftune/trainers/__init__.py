"""One trainer a stage, each a thin subclass of transformers' or TRL's."""
