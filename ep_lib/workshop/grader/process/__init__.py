"""The processes in which learners' code runs, and the walls around it."""
