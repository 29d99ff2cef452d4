"""The rooms that are being rebuilt: policies, fitting, directory and serving around one table, one path, one certifier.

They take the places of the old rooms of the same names, which are then deleted.
"""
