"""From a method's score, sentences and words to one order and one probability."""
