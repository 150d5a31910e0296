"""Models to talk with: what `hftune ask`, `hftune chat` and `hftune serve` share."""
