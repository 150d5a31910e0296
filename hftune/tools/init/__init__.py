"""`hftune init`: folders to start from."""
