"""The server's pages: `/ui` shows savings and whether the promise holds; on `/ui/review` people judge outputs."""
