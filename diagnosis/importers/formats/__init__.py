"""One module a format: it reads lines of a file, or scrapes a server, and makes a record."""
