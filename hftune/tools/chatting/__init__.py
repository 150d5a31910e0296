"""`hftune chat`: a conversation with one model, or with two alongside, in the terminal."""
