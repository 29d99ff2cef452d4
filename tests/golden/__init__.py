"""Golden files: what a release before the room `cascade.guarantees` wrote of each kind of guarantee."""
