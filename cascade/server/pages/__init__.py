"""The server's pages for people: `/ui` says what was saved and whether the promise holds, `/ui/review` asks people."""
