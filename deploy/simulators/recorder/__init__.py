"""An algorithm folder for `play.py`: draws actions at random, and writes down what it receives."""
