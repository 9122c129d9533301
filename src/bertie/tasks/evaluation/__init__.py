"""What an evaluation tells beside the scores: of classes, probabilities and single examples, as JSON and as a page."""
