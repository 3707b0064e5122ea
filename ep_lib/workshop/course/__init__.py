"""What a learner works with: exercises as notebooks show them, puzzles, ladders, predictions and progress."""
