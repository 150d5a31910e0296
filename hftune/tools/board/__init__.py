"""A local page in the browser: runs as they train, compared with each other, and pipelines started from a form."""
