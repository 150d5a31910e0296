"""`hftune init`: a folder to start from."""
