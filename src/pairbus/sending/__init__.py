"""The paired sender: sends go to the primary, and to a backlog queue of the secondary while the primary is down."""
