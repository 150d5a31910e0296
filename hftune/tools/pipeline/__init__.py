"""One file, all stages: what `hftune pipeline` does. Starts the scripts that a person would; imports no trainer."""
