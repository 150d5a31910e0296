"""Models to talk with: what `hftune ask`, `hftune chat` and their like share."""
