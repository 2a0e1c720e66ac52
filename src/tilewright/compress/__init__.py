"""Models made smaller and faster within an error that is told."""
