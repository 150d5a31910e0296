"""`hftune schema`: what editors, forms and agents know of arguments and of pipeline files, as JSON Schema."""
