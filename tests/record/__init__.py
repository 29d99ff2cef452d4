"""The figures of commit 9e9ecfed on seeded random logs, as files, and the tests that the code still gives them."""
