"""The database: traces, feedback on them, and the ledger, as tables of one SQLite file or one PostgreSQL database.

`database` has the tables and the transactions, `traces` reads and removes rows, `writer` writes them in the background,
`recorder` follows a question to its end. `address` does not import SQLAlchemy, so neither does reading a configuration.
"""
