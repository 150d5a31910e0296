"""How a command answers requests over HTTP: the port that it holds, and the server's life from start to Ctrl-C."""
