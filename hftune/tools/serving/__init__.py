"""An OpenAI-compatible server for what was trained."""
