"""The server's pages: `/ui` shows the status; on `/ui/review` people judge outputs."""
