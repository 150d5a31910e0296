"""One reader per kind of file: the parent process cuts a file into chunks, any process turns a chunk into rows."""
