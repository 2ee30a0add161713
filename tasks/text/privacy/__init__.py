"""What an audit attacks in a text task (:mod:`fedapps.tasks.privacy`): sentences, what methods share, and
the model above its words."""
